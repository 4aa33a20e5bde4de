"""A limit on the time between two checks, so that a method that never returns is a failure and not a hang."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType

from edgefl import registry

HANG_SECONDS = 120.0
"""Time without a finished check, after which ``edgefl.check`` gives up."""


class Hung(BaseException):
    """No check was finished for too long; not an Exception, so that no method catches it."""


class Watch:
    """Raises Hung in the running code once ``seconds`` pass without a call of ``renew``.

    It needs a timer signal, which only the main thread of a POSIX system has; elsewhere there is no limit.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._watching = False

    def renew(self) -> None:
        """Give the next check the whole time again."""
        if self._watching:
            signal.setitimer(signal.ITIMER_REAL, self.seconds)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the code inside."""
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            yield
            return

        def give_up(number: int, frame: FrameType | None) -> None:
            raise Hung

        before = signal.signal(signal.SIGALRM, give_up)
        self._watching = True
        self.renew()
        try:
            yield
        finally:
            self._watching = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def hung_in(error: Hung, file: str | None) -> str:
    """Where the code was: a plug-in's place, a line of ``file`` (the method's), or the line that ran."""
    if (place := registry.plug_ins().place(error)) is not None:
        return str(place[0])
    frames = [(f.f_code.co_filename, line, f.f_code.co_qualname) for f, line in walk_tb(error.__traceback__)]
    frames = [frame for frame in frames if frame[2] != "Watch.watching.<locals>.give_up"]
    own = [frame for frame in frames if frame[0] == file] or frames
    return "{}:{}, in {}".format(*own[-1])
