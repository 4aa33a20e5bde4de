"""The fixture of pytest that checks a part: ``from edgefl.testing import edgefl_part`` in a test file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgefl.methods import Method
from edgefl.testing.findings import CheckReport
from edgefl.testing.part_check import check_part


@pytest.fixture
def edgefl_part() -> Callable[..., CheckReport]:
    """A function that checks a part as ``check_part`` does; the test fails with what is broken, a line each."""

    def check(kind: str, name: str | type[Method], /, **more: Any) -> CheckReport:
        report = check_part(kind, name, **more)
        if not report.ok:
            pytest.fail(str(report), pytrace=False)
        return report

    return check
