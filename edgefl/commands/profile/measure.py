"""``edgefl profile --measure`` and ``--fvcore``: predictions beside measurements on this machine and fvcore's count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil
import torch

from edgefl import units
from edgefl.commands.profile.answer import CalibratedMachine, CountedRow, MeasuredRow, MeasuredStep, Measurements
from edgefl.cost.fvcore_count import count_twice
from edgefl.cost.predict import shorten_passes
from edgefl.devices import Device
from edgefl.errors import ScenarioError
from edgefl.machine.microbenchmarks import SECONDS, calibrate_here
from edgefl.machine.observed_work import Observed, run_observed, step_seconds
from edgefl.planning.subjects import Subject, largest_works
from edgefl.records.record import UNSET, copy_fields
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.schedules import Stage
from edgefl.setup.compose import Given, planner_of, scenario_of
from edgefl.work import Source, StepTrace, Work
from edgefl.work.torch_device import device_of

SPARE = 0.9
"""Share of the free memory that a measured work may take, since the allocator's reserve isn't part of its peak.

A choice, not measured: with more, a work that just fits makes the machine swap, or is killed with the command.
"""


@dataclass(frozen=True)
class _Case:
    """The work of a subject's largest client at one stage, its data and its prediction."""

    subject: Subject
    stage: Stage
    work: Work
    source: Source
    trace: StepTrace

    @property
    def where(self) -> str:
        return f"{self.subject.name} at stage {self.stage.index}"


def measure(
    scenario: Given,
    *,
    kind: str | None = None,
    stage: int | None = None,
    calibration_seconds: float = SECONDS,
    on_progress: OnProgress = silent,
) -> Measurements:
    """Run the steps of a prediction on this machine, on random batches, and compare.

    ``rows`` has an entry for each kind and stage: memory (predicted, and by torch's allocator), FLOPs, and
    the seconds of a step, predicted from a calibration that is run first; on a GPU seconds aren't predicted.  Only the
    shapes of the scenario's data matter, so declared data are enough.

    Raises ScenarioError, before any work is run, for works that exceed this machine's free memory, and for a stage that
    doesn't exist; UnknownName for an unknown kind.
    """
    whole, on_message = scenario_of(scenario, ()), messages(on_progress)
    planner, device = planner_of(whole, on_progress), device_of(whole.executor.devices[0])
    cases = []
    for subject, offered, work, source in largest_works(planner, kind, stage):
        on_message(f"predicting {subject.kind} at stage {offered.index}")
        cases.append(_Case(subject, offered, work, source, planner.predictor.trace(work, source)))
        _check(cases[-1], device)
    machine, rates = None, None
    if device.type == "cpu":
        on_message("calibrating this machine")
        machine = calibrate_here(calibration_seconds)
        rates = CalibratedMachine(**copy_fields(CalibratedMachine, machine))
    rows = []
    for case in cases:
        told = messages(on_progress, f"{case.where}: ")
        seen = run_observed(shorten_passes(case.work), case.source, device, told)
        rows.append(_row(case, seen, machine))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return Measurements(device=name, machine=rates, rows=rows)


def count(
    scenario: Given, *, kind: str | None = None, stage: int | None = None, on_progress: OnProgress = silent
) -> list[CountedRow]:
    """Forward MACs of one sample by the meter and by fvcore, for each kind and stage, by part of the model."""
    planner, on_message = planner_of(scenario_of(scenario, ()), on_progress), messages(on_progress)
    rows = []
    for subject, offered, work, source in largest_works(planner, kind, stage):
        client_kind = subject.kind
        on_message(f"fvcore: {client_kind} at stage {offered.index}")
        described = planner.setup.method.setting.kinds[client_kind]
        spec = source.spec(replace(work.passes[0], batch=1, args={}), described.pattern)
        counts = count_twice(work.model, described.pattern, described.like, spec)
        rows.append(
            CountedRow(
                kind=subject.kind,
                variant=subject.shown_variant,
                stage=offered.index,
                part=offered.label or UNSET,
                forward_macs=sum(counts.meter.values()),
                fvcore_forward_macs=counts.total,
                error=counts.error,
                forward_macs_by_part=counts.meter,
                fvcore_forward_macs_by_part=counts.fvcore,
                differing=counts.differing(),
            )
        )
    return rows


def _check(case: _Case, device: torch.device) -> None:
    """Raise ScenarioError if the work needs more than SPARE of the free memory."""
    if device.type == "cuda":
        free, owner = torch.cuda.mem_get_info(device)[0], "GPU"
    else:
        free, owner = psutil.virtual_memory().available, "machine"
    needed = case.trace.peak_memory_bytes
    if needed > SPARE * free:
        raise ScenarioError(
            f"{case.where} is predicted to need {units.show_bytes(needed)}, and this {owner} has "
            f"{units.show_bytes(free)} free: no work was run; try a smaller --set training.batch=..., "
            "or another --kind or --stage"
        )


def _row(case: _Case, seen: Observed, machine: Device | None) -> MeasuredRow:
    predicted = case.trace.peak_memory_bytes
    flops, measured_flops = _flops(case.trace), _flops(seen.trace)
    seconds = step_seconds(case.work, case.source, case.trace, machine) if machine else {}
    steps = []
    for (index, pattern), (wall, cpu) in seen.seconds.items():
        expected = seconds.get((index, pattern))
        steps.append(
            MeasuredStep(
                distinct_pass=index,
                pattern=pattern,
                seconds=expected,
                measured_wall_seconds=wall,
                measured_cpu_seconds=cpu,
                error=None if expected is None else expected / cpu - 1,
            )
        )
    return MeasuredRow(
        kind=case.subject.kind,
        variant=case.subject.shown_variant,
        stage=case.stage.index,
        part=case.stage.label or UNSET,
        batch=max(p.batch for p in case.work.passes),
        peak_memory_bytes=predicted,
        measured_peak_memory_bytes=seen.peak_memory_bytes,
        memory_error=predicted / seen.peak_memory_bytes - 1,
        memory_assumed=case.trace.assumed,
        live_memory_bytes=case.trace.live_memory_bytes,
        measured_live_memory_bytes=seen.trace.live_memory_bytes,
        live_memory_error=case.trace.live_memory_bytes / seen.trace.live_memory_bytes - 1,
        memory_bytes=case.trace.memory_bytes,
        live_memory_bytes_by_part=case.trace.live_parts,
        measured_live_memory_bytes_by_part=seen.trace.live_parts,
        flops=flops,
        measured_flops=measured_flops,
        flops_error=flops / measured_flops - 1 if measured_flops else 0.0,
        steps=steps,
        rss_bytes_before=seen.rss_bytes_before,
        rss_bytes_peak=seen.rss_bytes_peak,
        rss_bytes_after=seen.rss_bytes_after,
    )


def _flops(trace: StepTrace) -> int:
    """Forward and backward FLOPs, summed over one step of each of the work's kinds of steps."""
    return sum(step.forward_flops + step.backward_flops for step in trace.steps.values())
