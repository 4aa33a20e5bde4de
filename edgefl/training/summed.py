"""Several clients that train one after the other, and whose changes are added up where they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from edgefl.training.assignment import Assignment
from edgefl.training.refusal import why_refused
from edgefl.work import Address, Description
from edgefl.work.packed import Packed
from edgefl.work.sums import Starts, WeightedMeans
from edgefl.work.update import Update


class Adder:
    """Runs assignments whose changes are added up; ``memory`` gives a buffer of so many bytes."""

    def __init__(self, memory: Callable[[int], Tensor]):
        self._memory = memory
        self._starts: Starts = {}
        self._began: tuple[Mapping[str, Tensor], object, dict[Address, Tensor], dict[str, Tensor]] | None = None

    def run_and_add(self, assignment: Assignment, run: Callable[[Assignment], Update]) -> Update:
        """Run an assignment and its ``others``, and add up what they change, as ``assignment.sum`` says.

        The report has the sums; those of clients have no payloads, and say why an update isn't in the sums.
        """
        rule, work = assignment.sum, assignment.form
        assert rule is not None
        base, bases = self._bases(assignment)
        sums, reports = WeightedMeans(rule.cuts, rule.totals, rule.alone, self._starts, self._memory), []
        assignments = (replace(assignment, others=(), sum=None), *assignment.others)
        for each, (weight, factor) in zip(assignments, rule.weights, strict=True):
            report = run(each)
            reason = why_refused(work, report, each.seed, keep_non_finite=rule.keep_non_finite)
            if reason is None:
                sums.add(work.up, decode_payloads(work, report.payloads, lambda: bases), base, weight, factor)
            reports.append(replace(report, payloads={}, refused=reason))
            del report  # its payloads are a model's size, and the next client's would stand beside them
        return replace(reports[0], others=tuple(reports[1:]), means=sums.means)

    def _bases(self, assignment: Assignment) -> tuple[dict[Address, Tensor], dict[str, Tensor]]:
        """What clients began with, by address, and as codecs need it; assignments with the same inputs share it."""
        began, work = self._began, assignment.form
        if began is None or began[0] is not assignment.inputs or began[1] is not work.down:
            inputs = work.starting_tensors(assignment.inputs)
            base = {i.source: inputs[i.name] for p in work.down for i in p.items if i.like is None}
            self._starts.clear()
            self._began = began = assignment.inputs, work.down, base, work.bases(inputs)
        return began[2], began[3]


def decode_payloads(
    work: Description, payloads: Mapping[str, Mapping[str, Tensor]], bases: Callable[[], Mapping[str, Tensor]]
) -> Mapping[str, Mapping[str, Tensor]]:
    """What a client sent, by payload and item; a codec's output may be a difference to the values of ``bases()``."""
    if all(isinstance(sent, Packed) for sent in payloads.values()):
        return payloads  # without a codec
    values = bases()
    return {p.name: p.decode_tensors(payloads[p.name], values) for p in work.up}
