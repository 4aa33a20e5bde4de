"""Writing in the background: the newest of what is to be written, and not too often."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from threading import Condition, Thread


class Background:
    """A thread that makes the newest of the calls that it is given, and begins one ``pause`` seconds after another.

    A call that hasn't begun is dropped when a newer one is given.
    """

    def __init__(self, pause: float):
        self._pause, self._began = pause, -inf
        self._changed = Condition()
        self._next: Callable[[], None] | None = None
        self._thread: Thread | None = None
        self._calling = self._at_once = self._closed = False
        self._error: BaseException | None = None

    def give(self, call: Callable[[], None]) -> None:
        """Make this call when ``pause`` seconds have passed.  Raises what an earlier call raised."""
        with self._changed:
            self._raise()
            self._next = call
            if self._thread is None:
                self._thread = Thread(target=self._work, name="checkpoints", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self) -> None:
        """Make the newest call at once, and wait for its end.  Raises what it or an earlier one raised."""
        with self._changed:
            self._at_once = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next is None and not self._calling)
            self._at_once = False
            self._raise()

    def close(self) -> None:
        """End the thread, after ``settle``."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._closed)
                # a call that is given meanwhile replaces the one that waits
                self._changed.wait_for(
                    lambda: self._at_once or self._closed, max(0.0, self._began + self._pause - time.monotonic())
                )
                call, self._next = self._next, None
                if call is None:
                    return
                self._calling, self._began = True, time.monotonic()
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:
                error = raised
            del call  # it may refer to large tensors
            with self._changed:
                self._calling, self._error = False, error
                self._changed.notify_all()
