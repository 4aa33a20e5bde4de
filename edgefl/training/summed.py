"""Several clients that train one after the other, and whose changes are added up where they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from edgefl.training.refusal import why_refused
from edgefl.training.task import Report, Task
from edgefl.work import Address, Work
from edgefl.work.packed import Packed
from edgefl.work.sums import Sums


def summed(task: Task, run: Callable[[Task], Report]) -> Report:
    """Run a task and its ``others``, and add up what they change, as ``task.sum`` says.

    The report has the sums; those of clients have no payloads, and say why an update isn't in the sums.
    """
    rule, work = task.sum, task.work
    assert rule is not None
    tasks = (replace(task, others=(), sum=None), *task.others)
    inputs = work.received(task.inputs)
    base, bases = started_from(work, inputs), work.bases(inputs)
    sums, reports = Sums(rule.totals), []
    for each, (weight, factor) in zip(tasks, rule.weights, strict=True):
        report = run(each)
        reason = why_refused(work, report, each.seed, keep_non_finite=rule.keep_non_finite)
        if reason is None:
            sums.add(work.up, decoded(work, report, bases), base, weight, factor)
        reports.append(replace(report, result=replace(report.result, payloads={}), refused=reason))
        del report
    return replace(reports[0], others=tuple(reports[1:]), sums=sums.means)


def started_from(work: Work, inputs: Mapping[str, Tensor]) -> dict[Address, Tensor]:
    """The values that a client began with, by address."""
    return {i.source: inputs[i.name] for p in work.down for i in p.items if i.like is None}


def decoded(work: Work, report: Report, bases: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
    """What a client sent, by payload and item; ``bases`` are the values to which a codec's output is a difference."""
    payloads = report.result.payloads
    if all(isinstance(sent, Packed) for sent in payloads.values()):
        return payloads  # without a codec
    return {p.name: p.decoded(payloads[p.name], bases) for p in work.up}
