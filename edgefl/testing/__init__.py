"""For the tests of parts of one's own: ``check_part``, and the fixture ``edgefl_part`` of pytest.

Nothing else of edgefl imports it, and only the fixture imports pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import first_use

if TYPE_CHECKING:
    from edgefl.testing.findings import CheckReport
    from edgefl.testing.fixture import edgefl_part
    from edgefl.testing.part_check import check_part

__all__ = ["CheckReport", "check_part", "edgefl_part"]

_MODULES = {"CheckReport": "findings", "check_part": "part_check", "edgefl_part": "fixture"}
"""Module of each public name."""

__getattr__ = first_use.imports(__name__, _MODULES)
