"""A run in a process of its own that kills itself at a chosen moment.

The process is a fork of the server of workers, which has imported torch once for all of them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import edgefl
from edgefl import start_method
from edgefl.training import worker


def killed_at(
    scenario: Mapping[str, Any], output: Path, event: str, number: int, changed: Mapping[str, object] | None = None
) -> None:
    """Run until the given occurrence of an event; ``changed`` has values of modules (``edgefl.runs.durable:NAME``)."""
    arguments = (dict(scenario), output, event, number, dict(changed or {}))
    process = start_method.context(worker.__name__).Process(target=_run, args=arguments)
    process.start()
    process.join(900)
    assert process.exitcode == -signal.SIGKILL


def _run(scenario: dict[str, Any], output: Path, event: str, number: int, changed: dict[str, object]) -> None:
    for name, value in changed.items():
        module, _, attribute = name.partition(":")
        setattr(import_module(module), attribute, value)
    seen = 0

    def observe(name: str, facts: Mapping[str, Any]) -> None:
        nonlocal seen
        seen += name == event
        if seen == number:
            if scenario.get("executor", {}).get("name") == "processes":
                time.sleep(2)  # what workers train of clients under way is written, however slow the machine is
            os.kill(os.getpid(), signal.SIGKILL)

    edgefl.run(scenario, out=output, on_progress=observe)
