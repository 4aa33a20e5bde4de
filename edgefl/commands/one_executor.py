"""The executor of a command that runs one scenario after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from edgefl.commands.compose import federation_of
from edgefl.scenario import Scenario
from edgefl.training import Executor, Processes, make_executor


class Executors:
    """The executor of the current scenario; consecutive combinations with the same data and executor share it."""

    def __init__(self, stack: ExitStack):
        self._stack, self._key = stack, ""
        self._executor: Executor | None = None

    def of(self, scenario: Scenario, on_message: Callable[[str], None]) -> Executor:
        """The open executor for a scenario; closes the previous one if that doesn't suit it."""
        data, options, tokens = scenario.data, scenario.executor, scenario.model.tokens
        key = f"{data!r} {options!r} {scenario.seed} {tokens} {scenario.evaluation.clients}"
        if self._executor is None or key != self._key:
            if self._executor is not None:
                self._executor.close()
            federation = federation_of(scenario, on_message)
            if options.name == "ray":
                on_message(f"starting {options.workers} workers on Ray")
            executor = make_executor(options, federation, data, scenario.seed, tokens, None)
            self._stack.callback(executor.close)
            self._executor, self._key = executor, key
            if isinstance(executor, Processes):
                on_message(f"starting {options.workers} worker processes")
                executor.warm()
        return self._executor
