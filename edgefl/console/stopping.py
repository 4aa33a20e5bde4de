"""Signals that ask a command to end: SIGINT (Ctrl-C), SIGTERM (``kill``, a service that stops) and SIGHUP (a terminal
that closes).  All take the same way out: what was finished stays written, and a line says how to go on.

A signal that was ignored when the command began stays so: a shell's background jobs ignore SIGINT, and what ``nohup``
starts ignores SIGHUP.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

SAME_SECONDS = 1.0
"""A signal that comes so soon after the first is part of it: ``timeout`` sends one to a process and one to its group, a
closed terminal sends one by the shell and one by the kernel.  A choice: these come within milliseconds, and a user's
second Ctrl-C later."""

LOOK_SECONDS, SOON = 1.0, 0.001
"""Pause between two looks at whether the command still ends, as libraries drop exceptions in some places; and the pause
after Python has dropped one, as it does in garbage collection and where tensors are freed: a measurement that it cut
short there is to be in no record."""


class StopSignal(KeyboardInterrupt):
    """This signal asked the command to end."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def exit_code(error: KeyboardInterrupt) -> int:
    """128 + the signal's number, as shells count: 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + (error.number if isinstance(error, StopSignal) else int(signal.SIGINT))


@contextmanager
def at_once() -> Iterator[None]:
    """Let Ctrl-C end the process without a word, while there is nothing to keep and nothing to say."""
    with _handling_signals((signal.SIGINT,), signal.SIG_DFL):
        yield


@contextmanager
def stoppable(*, to_the_end: bool = False) -> Iterator[None]:
    """Raise ``StopSignal`` in the main thread at the first of the ``SIGNALS``, and again if that got lost; another
    signal after ``SAME_SECONDS`` ends the process at once.

    ``to_the_end``: the process ends after the block, and any of them ends it at once from then on.
    """
    first, looks = 0.0, False
    over, woken, hook = threading.Event(), threading.Event(), sys.unraisablehook
    watch: threading.Thread | None = None

    def look(number: int) -> None:
        nonlocal looks
        main = threading.main_thread().ident
        while main is not None and hasattr(signal, "pthread_kill"):
            if woken.wait(LOOK_SECONDS):
                woken.clear()
                time.sleep(SOON)
            if over.is_set():
                return
            looks = True
            signal.pthread_kill(main, number)

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal first, looks, watch
        if over.is_set():
            return
        if watch is None:
            first = time.monotonic()
            watch = threading.Thread(target=look, args=(number,), daemon=True)
            watch.start()
            _asked.append(StopSignal(number))
            raise _asked[-1]
        if looks:
            looks = False
            if behind(sys.exc_info()[1]) is None:
                raise StopSignal(number)
        elif time.monotonic() - first > SAME_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def unraisable(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, StopSignal):
            woken.set()  # it is raised again
        else:
            hook(lost)

    with _handling_signals(SIGNALS, stop, kept=to_the_end):
        sys.unraisablehook = unraisable
        try:
            yield
        finally:
            sys.unraisablehook = hook
            _asked.clear()
            over.set()
            woken.set()
            if watch is not None and watch.ident is not None:  # it couldn't be started at the limit of threads
                watch.join()


def stop_signal() -> StopSignal | None:
    """The signal that asked this command to end, if one did: a library's own code may have made another error of it."""
    return _asked[-1] if _asked else None


_asked: list[StopSignal] = []
"""That of the ``stoppable`` that is open."""


def behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interruption that this exception is, or that was under way when it was raised; None if there was none."""
    seen: list[BaseException] = []  # some can't be hashed
    while error is not None and not any(error is each for each in seen):
        if isinstance(error, KeyboardInterrupt):
            return error
        seen.append(error)
        error = error.__context__
    return None


@contextmanager
def _handling_signals(numbers: tuple[signal.Signals, ...], handler: Any, *, kept: bool = False) -> Iterator[None]:
    """Handle those of these signals that aren't ignored; afterwards as before, or with ``kept`` by their default.

    Only the main thread of a process can: in another nothing changes.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {n: signal.getsignal(n) for n in numbers}
        before = {n: now for n, now in before.items() if now not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if kept else old)
