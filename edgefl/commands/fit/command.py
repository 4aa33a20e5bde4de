"""``edgefl fit``: the smallest change of a scenario that lets a device take part."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

from edgefl import units
from edgefl.cells.cells import check_jobs
from edgefl.cells.pricing import beside
from edgefl.commands.fit.answer import (
    BudgetLimit,
    FailedCombination,
    Fit,
    FitCandidate,
    KindFit,
    ScenarioChange,
    StageFit,
    Tightest,
)
from edgefl.commands.fit.bounds import FitQuestion, Pricer
from edgefl.commands.fit.changes import TIERS, Levels, axes_of, sets_of, steps_of
from edgefl.commands.fit.search import FitSearch, worst
from edgefl.devices import (
    Device,
    available_memory_bytes,
    free_memory_range,
    load_device,
    load_link,
    runtime_range,
    show_runtime,
    with_runtime,
)
from edgefl.devices.budgets import BUDGETS, budget_named, field_of
from edgefl.devices.options import Mixture, amounts_of, share_of_device
from edgefl.errors import ScenarioError, UnitError, UnknownName
from edgefl.planning.eligibility import DEVICE, OWNER, Verdict, memory_limit
from edgefl.planning.subjects import largest
from edgefl.records.record import UNSET, Maybe
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario
from edgefl.schedules import Stage
from edgefl.setup.compose import Given, at_most, commonest_link, compose, predictor_of, scenario_of
from edgefl.setup.progress import public_command

MOST, FIRST = 200, 5
"""Works that are predicted at most for a kind, and solutions after which the search ends.

A choice: 200 works of a model of 24 blocks take 91 s on two cores (docs/explanation/performance.md).
"""

PACED_BY = 5
"""Works from whose time that of the others is estimated: the first ones also import what later ones find imported."""

PAUSE = 5.0
"""Wall time in seconds without a message after which the number of combinations that were looked at is told.

A choice: a user sees that the search goes on, and a log of an hour has 720 lines at most.
"""


class Unfinished(KeyboardInterrupt):
    """The search was interrupted; ``answer`` is what it had found by then."""

    def __init__(self, answer: Fit):
        super().__init__()
        self.answer = answer


@dataclass(frozen=True)
class Allowance:
    """How much of a budget a round may use (inf: unlimited), where that limit comes from, and whether it is the
    device's or another's word."""

    allowed: float
    source: str
    limit: str = OWNER


@public_command
def fit(
    scenario: Given,
    overrides: Sequence[str] = (),
    *,
    device: str,
    link: str | None = None,
    kind: str | None = None,
    memory: object = None,
    flops: object = None,
    bytes: object = None,
    seconds: object = None,
    joules: object = None,
    power: object = None,
    any_stage: bool = False,
    epochs: bool = False,
    most: int = MOST,
    first: int | None = FIRST,
    jobs: int | None = None,
    on_progress: OnProgress = silent,
    progress: bool = False,
) -> Fit:
    """Find the smallest changes of a scenario that let clients on a device take part, for each kind by itself.

    Changes are tried in the order of how much they change training: first those that compute the same updates
    differently, then numerics, payloads, the schedule, the batch and, with ``epochs``, the local epochs.  What the
    scenario compares is ignored.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        overrides: Changes of single fields, ``"training.batch=8"``.
        device: The device that should take part, a name of the library or a file.
        link: Its link; by default the fleet's most common one, of equally common ones the slowest.
        kind: Only this kind of client.
        memory: Most bytes of live tensors and kernels' scratch that the owner grants, a number or ``"64 MiB"``; by
            default the scenario's budget at its lowest.  Never more than the device has, unless the scenario's
            ``within_device`` is false.
        flops: Most FLOPs in a round, a number or ``"1 TFLOP"``; by default the scenario's budget.
        bytes: Most bytes down and up in a round, a number or ``"20 MB"``; by default the scenario's budget.
        seconds: Longest round, a number or ``"10 min"``; by default the tighter of the scenario's budget and deadline.
        joules: Most energy in a round, a number or ``"500 J"``; by default the scenario's budget.
        power: Highest power that a round draws, a number or ``"15 W"``; by default the scenario's budget.
        any_stage: Whether it is enough to fit in one stage of the schedule; by default all stages must fit.
        epochs: Whether fewer local epochs are among the changes.
        most: How many works may be predicted for a kind at most.
        first: How many solutions are searched for a kind; None finds all.
        jobs: How many processes predict works side by side, once there are more than four; by default one for each
            core, as far as there is memory.  Answers are the same.
        on_progress: Called with the name of an event and its facts.
        progress: Whether to show a bar, by tqdm or rich, whichever is installed.

    Returns:
        A record: the ``budgets`` with where each comes from, and by kind ``fits``, ``as_it_stands``, ``solutions``
        (the smallest change first, each with its ``sets`` for ``--set``) and, where nothing fits, what is ``nearest``.

    Raises:
        ScenarioError: The scenario can't be run, or ``most`` or ``first`` is below 1.
        UnknownName: The device, link or kind is unknown.
        UnitError: A budget can't be read, or is 0.
        Unfinished: A KeyboardInterrupt came during the search; it has the ``answer`` so far.
    """
    if jobs is not None:
        check_jobs(jobs)
    whole = scenario_of(scenario, overrides)
    target_device = with_runtime(load_device(device), whole.fleet.runtime)
    allowances = allowances_of(
        whole,
        target_device,
        {"memory": memory, "flops": flops, "bytes": bytes, "seconds": seconds, "joules": joules, "power": power},
    )
    memory_of_device = allowances["memory"].limit == DEVICE
    for name, number in (("most", most), ("first", first)):
        if number is not None and number < 1:
            raise ScenarioError(f"{name} must be at least 1, not {number}")
    setup = compose(whole, messages(on_progress), trains=False)
    if kind is not None and kind not in setup.clients.kinds:
        raise UnknownName("client kind", kind, setup.clients.kinds)
    target_link = load_link(link) if link else commonest_link(setup.fleet)
    question = FitQuestion(
        whole, setup, predictor_of(whole), target_device, target_link, {n: a.allowed for n, a in allowances.items()},
        memory_of_device, any_stage=any_stage, epochs=epochs, most=most, first=first,
    )  # fmt: skip

    def answer(kinds: Mapping[str, KindFit]) -> Fit:
        return Fit(
            scenario=whole.name,
            at_most=at_most([whole]) or UNSET,
            device=target_device.name,
            link=target_link.name,
            runtime=runtime_range(target_device, whole.fleet.runtime),
            runtime_overhead_bytes=target_device.runtime_overhead_bytes,
            least_available_bytes=free_memory_range(target_device)[0],
            most_available_bytes=free_memory_range(target_device)[1],
            any_stage=any_stage,
            budgets={
                name: BudgetLimit(
                    allowed=_finite(allowance.allowed),
                    source=allowance.source,
                    limit=memory_limit(allowance.allowed, memory_of_device) if name == "memory" else UNSET,
                )
                for name, allowance in allowances.items()
            },
            sets=["compare=null"] if whole.compare else [],
            kinds=kinds,
        )

    finished = dict[str, KindFit]()
    with beside([question.predictor], jobs) as pricing:
        for name in setup.clients.kinds if kind is None else [kind]:
            hunt = _OfKind(replace(question, pricing=pricing), name, on_progress)
            try:
                finished[name] = hunt.find_fit()
            except KeyboardInterrupt as error:
                raise Unfinished(answer({**finished, name: hunt.so_far})) from error
    return answer(finished)


# --- what the device may use -----------------------------------------------------------------------------------------


def allowances_of(scenario: Scenario, device: Device, given: Mapping[str, object]) -> dict[str, Allowance]:
    """The tightest limit of each budget: the given one or else the scenario's, and the device's own memory.

    Those of BUDGETS come first, then the others that are given or that the scenario states.

    The device's memory counts as it does in a run: unless the scenario's ``within_device`` is false.  ``device`` has
    the overhead of the scenario's runtime.  For a budget that clients draw from a range it is the lower end, of a
    mixture the least of its amounts.  Raises UnitError.
    """
    budgets, by_budget = scenario.fleet.budgets, dict[str, list[Allowance]]()
    options = budgets.limits()
    others = {*options, *(name for name, value in given.items() if value is not None)} - {*BUDGETS}
    for name in (*BUDGETS, *sorted(others)):
        field, option = field_of(name), options.get(name)
        limits = by_budget[name] = []
        if (value := given.get(name)) is not None:
            limits.append(Allowance(_read(name, value), "as asked"))
            continue
        for amount, part in amounts_of(option):
            whose = f" ({units.show_share(part) if isinstance(part, float) else part} of the clients)"
            source = f"fleet.budgets.{field}{whose if isinstance(option, Mixture) else ''}"
            if isinstance(amount, str):
                share = share_of_device(amount)[0]
                available = max(share * device.ram_bytes - device.runtime_overhead_bytes, 0)
                limits.append(Allowance(float(int(available)), f"{source}: {units.show_share(share)} of device"))
            else:
                limits.append(Allowance(float(amount[0]), source))
        if name == "seconds" and scenario.round.deadline is not None:
            limits.append(Allowance(float(scenario.round.deadline), "round.deadline"))
    if budgets.within_device:
        source = (
            f"{device.name}: {units.show_bytes(device.usable_memory_bytes)} less "
            f"{units.show_bytes(device.runtime_overhead_bytes)} for {show_runtime(scenario.fleet.runtime)}"
        )
        by_budget["memory"].append(Allowance(float(available_memory_bytes(device)), source, DEVICE))
    return {
        # of equal limits the first, which is the owner's
        name: min(limits, key=lambda allowance: allowance.allowed) if limits else Allowance(inf, "unlimited")
        for name, limits in by_budget.items()
    }


def _read(name: str, value: object) -> float:
    try:
        number = budget_named(name).quantity.parse(value)
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None
    if not number:
        raise UnitError(f"{name}: a budget must be positive, not {value}; leave it out to take the scenario's")
    return float(number)


# --- one kind --------------------------------------------------------------------------------------------------------


class _OfKind:
    """The search for a kind; ``so_far`` is its answer with what is known by now."""

    def __init__(self, question: FitQuestion, kind: str, on_progress: OnProgress):
        self.question, self.kind, self._on_progress = question, kind, on_progress
        setup = question.setup
        client = largest(setup, kind)
        samples = int(setup.clients.client_samples[client])
        self.axes = axes_of(question.scenario, setup, kind, samples, growing=question.any_stage, epochs=question.epochs)
        self.pricer = Pricer(question, self.axes, kind, client, self._on_prediction)
        self.search = FitSearch(self.pricer)
        self._told = time.monotonic()
        self.so_far = KindFit(
            kind=kind, samples=samples, rounds=0, fits=False, as_it_stands=None, solutions=[], complete=False
        )

    def _on_prediction(self, predicted: int, levels: Levels, stage: Stage) -> None:
        most = self.question.most
        what = ", ".join(step.what for step in steps_of(self.axes, levels)) or "as it stands"
        left = ""
        if predicted >= PACED_BY:
            seconds = self.pricer.seconds / predicted * (most - predicted)
            left = f"; at most {units.show_seconds(seconds)} left"
        self._tell(f"work {predicted + 1} of at most {most}: {what}, stage {stage.index}{left}")

    def _on_candidate(self) -> None:
        if time.monotonic() - self._told >= PAUSE:  # many are decided without a prediction
            result = self.search.result
            self._tell(f"combination {result.looked_at:,} of {result.candidates:,}")

    def _tell(self, words: str) -> None:
        self._told = time.monotonic()
        self._on_progress("prepare", {"what": f"{self.kind}: {words}"})

    def _on_solution(self, levels: Levels) -> None:
        candidate = _candidate(self.search, levels, self.so_far.as_it_stands)
        self.so_far = replace(self.so_far, solutions=[*self.so_far.solutions, candidate])
        sets = " ".join(f"--set {shlex.quote(text)}" for text in candidate.sets)
        self._on_progress("found", {"what": f"{self.kind}: solution {len(self.so_far.solutions)}: {sets}"})

    def find_fit(self) -> KindFit:
        """The answer."""
        as_it_stands: Levels = (0,) * len(self.axes)
        rounds = sum(span.rounds for span in self.pricer.spans(as_it_stands))
        if not rounds:
            return replace(self.so_far, complete=UNSET)
        self.so_far = replace(self.so_far, rounds=rounds)
        unchanged = _candidate(self.search, as_it_stands)
        self.search.memory_binds = (unchanged.margins["memory"] or 0.0) < 0
        self.so_far = replace(self.so_far, fits=unchanged.fits, as_it_stands=unchanged)
        if unchanged.fits:
            return replace(self.so_far, predictions=len(self.pricer.keys), complete=True)
        try:
            result = self.search.find(self._on_solution, self._on_candidate)
        finally:
            self._note_search()
        nearest: FitCandidate | Maybe = UNSET
        if result.nearest is not None:
            levels, excess = result.nearest
            nearest = replace(_candidate(self.search, levels, unchanged), excess=excess)
        self._note_search()
        return replace(
            self.so_far,
            nearest=nearest,
            unmet=UNSET if result.solutions else list(result.unmet),
            complete=result.complete,
        )

    def _note_search(self) -> None:
        result = self.search.result
        failed = [
            FailedCombination(sets=sets_of(steps_of(self.axes, cell)), error=text)
            for cell, text in result.failed.items()
        ]
        self.so_far = replace(
            self.so_far,
            predictions=len(self.pricer.keys),
            candidates=result.candidates,
            looked_at=result.looked_at,
            failed=failed,
        )


def _candidate(search: FitSearch, levels: Levels, unchanged: FitCandidate | None = None) -> FitCandidate:
    """A candidate with its costs: the largest by budget, and means over the rounds."""
    pricer = search.pricer
    pricer.most, most = len(pricer.keys) + 10**6, pricer.most  # an answer's costs are always predicted
    rows = list(search.verdicts(levels))
    on_time = list(search.verdicts(levels, late=False))
    pricer.most = most
    fitting = [row for row in rows if row[2].eligible]
    verdict = worst(fitting if search.any_stage and fitting else rows)
    rounds = sum(span.rounds for span, _, _ in rows)
    seconds, joules = (
        sum(span.rounds * each.costs[name] for span, _, each in on_time) / rounds for name in ("seconds", "joules")
    )
    steps = steps_of(pricer.axes, levels)
    return FitCandidate(
        changes=[ScenarioChange(what=step.what, changes=TIERS[step.tier]) for step in steps],
        sets=sets_of(steps),
        fits=bool(fitting) if search.any_stage else len(fitting) == len(rows),
        peak_memory_bytes=int(verdict.costs["memory"]),
        **vars(_tightest(verdict)),
        seconds_per_round=seconds,
        joules_per_round=joules,
        stages=[
            StageFit(
                stage=stage.index,
                part=stage.label or UNSET,
                first_round=span.first,
                rounds=span.rounds,
                eligible=verdict.eligible,
                reason=verdict.reason,
                **vars(_tightest(verdict)),
            )
            for span, stage, verdict in rows
        ],
        seconds_ratio=_ratio(seconds, unchanged.seconds_per_round if unchanged else seconds),
        joules_ratio=_ratio(joules, unchanged.joules_per_round if unchanged else joules),
    )


def _ratio(value: float, before: float) -> float | None:
    return value / before if before else None


def _tightest(verdict: Verdict) -> Tightest:
    """Costs and margins in the budgets' units; None for a margin without limit."""
    return Tightest(
        binding=verdict.binding,
        memory_limit=verdict.memory_limit,
        costs=verdict.costs,
        margins={name: _finite(margin) for name, margin in verdict.margins.items()},
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
