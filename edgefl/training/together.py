"""Futures of the reports of clients whose changes are added up where they train."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from edgefl.training.assignment import Assignment
from edgefl.work.sums import SharedSum
from edgefl.work.update import Update


class Submits(Protocol):
    """An executor, as far as it is needed here."""

    def submit(self, assignment: Assignment) -> Future[Update]:
        """Start or queue an assignment."""
        ...


def submit_together(executor: Submits, assignments: Sequence[Assignment], rule: SharedSum) -> list[Future[Update]]:
    """Have assignments added up by a rule where they train; returns a future for each report.

    The first report has the sums.

    Cancelling all of them cancels the training if it hasn't begun.
    """
    futures = [_Together() for _ in assignments]
    inner = executor.submit(replace(assignments[0], others=tuple(assignments[1:]), sum=rule))
    for future in futures:
        future.mates, future.inner = futures, inner
    inner.add_done_callback(lambda done: _divide(done, futures))
    return list(futures)


class _Together(Future[Update]):
    """Future of one report among those of a training of several clients."""

    mates: Sequence[Future[Update]] = ()
    inner: Future[Update] | None = None

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if self.inner is not None and all(mate.cancelled() for mate in self.mates):
            self.inner.cancel()
        return cancelled


def _divide(done: Future[Update], futures: Sequence[_Together]) -> None:
    """Give each future its report, or the error."""
    for future in futures:
        future.mates, future.inner = (), None
    if done.cancelled():
        for future in futures:
            Future.cancel(future)
        return
    error = done.exception()
    report = None if error else done.result()
    reports = [None] * len(futures) if report is None else [replace(report, others=()), *report.others]
    for future, own in zip(futures, reports, strict=True):
        with suppress(InvalidStateError):  # one that was cancelled
            if error is not None:
                future.set_exception(error)
            else:
                assert own is not None
                future.set_result(own)
