"""Which clients of a dispatch are trained at once (``training.stack``), and the futures of their reports."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from edgefl.training.task import Report, Sum, Task
from edgefl.work.stacking import told_alone, why_alone


class Submits(Protocol):
    """An executor, as far as it is needed here."""

    def submit(self, task: Task) -> Future[Report]:
        """Start or queue a task."""
        ...


def grouped(tasks: Sequence[Task], classes: Sequence[Hashable], most: int) -> list[list[int]]:
    """The positions of tasks that are trained at once, each group in order; the others train one by one.

    Tasks go together if they have equal works, the same inputs and the same of ``classes`` (clients of a class have
    equal numbers of batches), ``most`` at a time.  The rest of a class makes a group if it is at least half of that,
    because a group takes the time of ``most`` clients.  What is measured, attacks or keeps values trains alone.
    """
    alike: list[tuple[Task, Hashable, list[int]]] = []
    for position, (task, of) in enumerate(zip(tasks, classes, strict=True)):
        if task.metered or task.attack is not None or task.kept is not None:
            continue
        for first, its, members in alike:
            if its == of and first.inputs is task.inputs and _same(first, task):
                members.append(position)
                break
        else:
            alike.append((task, of, [position]))
    groups = []
    for first, _, members in alike:
        least = max(2, (most + 1) // 2)
        if len(members) < least:
            continue
        if (why := why_alone(first.form)) is not None:
            told_alone(first.form.kind, why)
            continue
        found = [members[start : start + most] for start in range(0, len(members), most)]
        groups += [group for group in found if len(group) >= least]
    return groups


def _same(one: Task, other: Task) -> bool:
    return one.form == other.form and one.scalars == other.scalars


def submit_together(
    executor: Submits, tasks: Sequence[Task], places: int = 0, rule: Sum | None = None
) -> list[Future[Report]]:
    """Have tasks trained at once on so many places, or added up by a rule; returns a future for each report.

    The first report has the sums.

    Cancelling all of them cancels the training if it hasn't begun.
    """
    futures = [_Together() for _ in tasks]
    peak = None if tasks[0].peak is None else max(places, 1) * tasks[0].peak
    inner = executor.submit(replace(tasks[0], others=tuple(tasks[1:]), places=places, sum=rule, peak=peak))
    for future in futures:
        future.mates, future.inner = futures, inner
    inner.add_done_callback(lambda done: _divide(done, futures))
    return list(futures)


class _Together(Future[Report]):
    """Future of one report among those of a training of several clients."""

    mates: Sequence[Future[Report]] = ()
    inner: Future[Report] | None = None

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if self.inner is not None and all(mate.cancelled() for mate in self.mates):
            self.inner.cancel()
        return cancelled


def _divide(done: Future[Report], futures: Sequence[_Together]) -> None:
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
