"""The blocks of the page ``how-the-clock-works.md``: processes as they stand in the source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from textwrap import dedent
from typing import Any

from edgefl.simulation.client import client
from edgefl.simulation.policies import FedBuff
from tools.pages.running import blocks


def clock_blocks() -> dict[str, str]:
    """A client's process, FedBuff's, and the policy of the page about own ones."""
    return {
        "a client": _fenced(_source(client)),
        "FedBuff": _fenced(_source(FedBuff.play)),
        "a policy": _fenced(_policy()),
    }


def _fenced(text: str) -> str:
    return f"```python\n{text.strip()}\n```"


def _source(function: Callable[..., Any]) -> str:
    return dedent(inspect.getsource(function))


def _policy() -> str:
    """The class ``Half`` of docs/guides/own-schedule.md, where tests run it."""
    (text,) = (b.body for b in blocks("docs/guides/own-schedule.md") if b.file == "mylab/rounds.py")
    (found,) = (each for each in ast.parse(text).body if isinstance(each, ast.ClassDef) and each.name == "Half")
    return ast.get_source_segment(text, found) or ""
