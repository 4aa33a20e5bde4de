"""Summary of a run from its records: participation, costs and metrics, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, cast

from edgefl.records import rounds as written
from edgefl.records.clients import Assigned, FlightRecord, MeasuredRecord
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.epsilon import PrivacySpent
from edgefl.records.metrics import Metrics, shown_metrics, split_of
from edgefl.records.record import UNSET, Clients, Keys, Maybe, always, part_of, types_of
from edgefl.records.rounds import ClientMetrics, EarlyStop, Excluded, Round, RoundCourse, RoundTimes, RunSums
from edgefl.records.run import EvaluationFacts, FinalSummary
from edgefl.records.settings import EvaluationSettings, Settings
from edgefl.records.summary import (
    CostRow,
    DeviceClassRow,
    Gained,
    Participation,
    PlayedStage,
    RunComparison,
    RunRow,
    RunSummary,
    RunTotals,
    StageExcluded,
    StageKind,
    Summary,
)
from edgefl.runs import Run
from edgefl.runs.changed import raise_run_errors

Samples = Mapping[str, Mapping[str, int]]
"""``{split: {kind: samples}}`` of the server's evaluation data."""

if TYPE_CHECKING:
    from edgefl.work.description import MissingRates


def summary(run: Run) -> Summary:
    """The contents of the tables after a run."""
    from edgefl.runs import is_comparison

    several = is_comparison(run.path)
    members = run.runs if several else {run.name: run}
    facts = {label: facts_to_compare(member, label) for label, member in members.items()}
    return Summary(
        folder=str(run.path),
        finished=run.is_finished,
        runs={label: each.told for label, each in facts.items()},
        compared=compare_runs(facts) if several else UNSET,
    )


@dataclass(frozen=True)
class RunFacts:
    """The summary of a run, and what only a comparison needs beside it.

    ``eligible_clients`` have their samples, ``updates`` are counted by client.  Runs with equal ``same_clients`` (seed,
    data and fleet) have the same ones.
    """

    told: RunSummary
    eligible_clients: Mapping[int, int]
    updates: Mapping[int, int]
    same_clients: Sequence[object]


def facts_of(run: Run, label: str = "") -> RunSummary:
    """The summary of one run, finished or not.

    Raises RunError for records that lack a field or hold another kind of value than edgefl writes.
    """
    return facts_to_compare(run, label).told


@part_of(Round)
class RoundFacts(RoundCourse, RoundTimes, RunSums):
    """What is read of a round."""

    server_works: Sequence[written.ServerWorkRecord]
    metrics: Metrics
    stopped: EarlyStop | Maybe | None = UNSET
    diverged: bool
    client_metrics: Sequence[ClientMetrics] | Maybe = UNSET
    privacy: PrivacySpent | Maybe = UNSET

    @property
    def split(self) -> str:
        """The split of the metrics."""
        return split_of(work.when for work in self.server_works)


@part_of(FlightRecord)
class FlightFacts(MeasuredRecord, Assigned):
    """What is read of a flight: all records of a large run's clients don't fit into memory."""

    client: int
    outcome: str
    peak_memory_bytes: int
    forward_flops: int
    backward_flops: int
    carried_download_bytes: int
    carried_upload_bytes: int
    virtual_seconds: float
    energy_joules: float | None

    @property
    def predicted_flops(self) -> float:
        """Predicted FLOPs, forward and backward."""
        return float(self.forward_flops + self.backward_flops)

    @property
    def measured_flops(self) -> float | None:
        """Measured FLOPs, forward and backward; None where the work wasn't metered."""
        forward, backward = self.measured_forward_flops, self.measured_backward_flops
        return None if forward is None or backward is None else float(forward + backward)


@part_of(VerdictRecord)
class VerdictFacts(Assigned):
    """What is read of a verdict."""

    client: int
    clients: Clients
    round: int
    eligible: bool
    binding: str | None
    costs: Annotated[Mapping[str, float], Keys("BUDGET")]
    memory_limit: str | None


@raise_run_errors
def facts_to_compare(run: Run, label: str = "") -> RunFacts:
    """The facts of one run, finished or not.  Raises RunError as ``facts_of`` does."""
    rounds, verdicts = list(run.read(RoundFacts)), list(run.read(VerdictFacts))
    clients = list(run.read(FlightFacts))
    settings = run.settings
    kinds = list(rounds[0].clients) if rounds else [k for k, n in (settings.data.clients or {}).items() if n]
    scored = [r for r in rounds if r.metrics]
    split = scored[-1].split if scored else settings.evaluation.split
    evaluation = run.read_file(EvaluationFacts) or evaluation_of(run, {})  # none before the data are open
    stopped = rounds[-1].stopped if rounds else None
    result = run.read_file(FinalSummary)
    in_groups = next((r for r in reversed(rounds) if r.client_metrics), None)
    told = RunSummary(
        label=label,
        scenario=settings.name,
        method=settings.method.name,
        schedule=settings.schedule.name,
        finished=run.is_finished,
        rounds=len(rounds),
        stopped=stopped.text + (f" ({settings.evaluation.split} split)" if stopped.metric else "") if stopped else None,
        best=(result.best or None) if result else None,
        outcomes=Counter(r.outcome for r in rounds),
        diverged_rounds=[r.round for r in rounds if r.diverged is True],
        flights=sum((Counter(r.outcomes) for r in rounds), Counter[str]()),
        trained=settings.training.mode == "real",
        virtual_seconds=rounds[-1].finished_virtual_seconds if rounds else 0.0,
        totals=_totals(rounds),
        server_flops=_server_flops(rounds) or UNSET,
        seconds_within=_seconds_within(verdicts),
        stages=_stages(rounds, verdicts),
        costs=_costs(clients),
        kinds={
            kind: _participation([v for v in verdicts if v.kind == kind], [c for c in clients if c.kind == kind])
            for kind in kinds
        },
        everyone=_participation(verdicts, clients),
        devices={
            name: _participation([v for v in verdicts if v.device == name], [c for c in clients if c.device == name])
            for name in sorted({v.device for v in verdicts})
        },
        metrics_round=scored[-1].round if scored else None,
        watched_split=settings.evaluation.split,
        metrics_split=split,
        metrics=result.metrics if result else scored[-1].metrics if scored else {},
        best_of_last=reported.last if result and scored and (reported := settings.evaluation.reported) else UNSET,
        chance=evaluation.chance[split] if split else {},
        test_samples=evaluation.samples.get(split, {}),
        client_metrics_round=UNSET if in_groups is None else in_groups.round,
        client_metrics=UNSET if in_groups is None else in_groups.client_metrics,
        privacy=rounds[-1].privacy if rounds else UNSET,
    )
    return RunFacts(
        told,
        {v.client: v.samples for v in verdicts if v.eligible},
        Counter(r.client for r in clients if r.outcome == "finished"),
        [run.scenario[name] for name in ("seed", "data", "fleet")],
    )


def _seconds_within(verdicts: Iterable[VerdictFacts]) -> dict[str, float]:
    """The intervals of the library's devices; no file that a run's folder names is opened."""
    from edgefl.devices import is_file_name  # it needs numpy, and a schema doesn't
    from edgefl.devices.browsing import seconds_within

    return seconds_within(name for name in sorted({verdict.device for verdict in verdicts}) if not is_file_name(name))


def _server_flops(rounds: Iterable[RoundFacts]) -> int:
    """FLOPs of the server's works but for evaluations."""
    works = (work for each in rounds for work in each.server_works if not work.when.startswith("evaluate"))
    return sum(work.forward_flops + work.backward_flops for work in works)


def _totals(rounds: Sequence[RoundFacts]) -> RunTotals:
    found: dict[str, Any] = {}
    for name, hint in types_of(RunSums).items():
        if always(hint) or (rounds and getattr(rounds[0], name) is not UNSET):
            values = [getattr(r, name) for r in rounds]
            found[name] = None if None in values else sum(values)
    sent, joules = found["selected"], found["energy_joules"]
    moved = found["carried_download_bytes"] + found["carried_upload_bytes"]
    return RunTotals(
        **found,
        bytes_per_client_round=moved / sent if sent else None,
        energy_joules_per_client_round=joules / sent if sent and joules is not None else None,
    )


def _stages(rounds: Sequence[RoundFacts], verdicts: Sequence[VerdictFacts]) -> list[PlayedStage]:
    """One entry per stage: its rounds, eligibility by kind, and the samples and classes of excluded clients.

    ``eligible`` is the lowest count of any round in the stage, ``most_eligible`` the highest.
    """
    stages = []
    for stage in sorted({r.stage for r in rounds}):
        stage_rounds = [r for r in rounds if r.stage == stage]
        numbers = {r.round for r in stage_rounds}
        kinds = {}
        for kind in dict.fromkeys(k for r in stage_rounds for k in r.clients):
            judged = [v for v in verdicts if v.kind == kind and (v.stage == stage or v.round in numbers)]
            # later verdicts replace earlier ones, so that each client is counted once
            refused = {v.client: v for v in judged if not v.eligible}
            eligible = [r.eligible.get(kind, 0) for r in stage_rounds if kind in r.clients]
            by_memory = [v for v in refused.values() if v.binding == "memory"]
            kinds[kind] = StageKind(
                clients=max(r.clients.get(kind, 0) for r in stage_rounds),
                eligible=min(eligible),
                most_eligible=max(eligible),
                peak_memory_bytes=int(max((v.costs["memory"] for v in judged), default=0)),
                refused_by=_count_clients_by((str(v.binding), v) for v in refused.values()),
                least_needs=_least_needs(refused.values()),
                refused_memory_by=_count_clients_by((str(v.memory_limit), v) for v in by_memory),
                refused_devices=_count_clients_by((v.device, v) for v in refused.values()),
            )
        worst = max(stage_rounds, key=lambda r: r.excluded.samples)
        lost = {name: getattr(worst.excluded, name) for name in types_of(Excluded)}
        excluded = StageExcluded(**lost, of_samples=sum(worst.samples.values()))
        stages.append(PlayedStage(stage=stage, rounds=len(stage_rounds), kinds=kinds, excluded=excluded))
    return stages


def _least_needs(refused: Iterable[VerdictFacts]) -> dict[str, float]:
    needs: dict[str, float] = {}
    for verdict in refused:
        if verdict.binding is not None:
            needs[verdict.binding] = min(verdict.costs[verdict.binding], needs.get(verdict.binding, inf))
    return needs


def _count_clients_by(verdicts: Iterable[tuple[str, VerdictFacts]]) -> dict[str, int]:
    """Number of clients by a word of their verdicts, in descending order."""
    counts: Counter[str] = Counter()
    for word, verdict in verdicts:
        counts[word] += verdict.clients
    return dict(counts.most_common())


def _costs(clients: Sequence[FlightFacts]) -> list[CostRow]:
    """Costs of clients that were sent off, by stage and kind: the largest peak memory, and means of a client's round.

    Errors are the largest of the metered rounds, by absolute value.
    """
    groups: dict[tuple[int, str], list[FlightFacts]] = {}
    for record in clients:
        groups.setdefault((record.stage, record.kind), []).append(record)
    order = {kind: i for i, kind in enumerate(dict.fromkeys(r.kind for r in clients))}
    rows = []
    for (stage, kind), records in sorted(groups.items(), key=lambda group: (group[0][0], order[group[0][1]])):
        peaks = [r.measured_peak_memory_bytes for r in records if r.measured_peak_memory_bytes is not None]
        metered = [r for r in records if r.measured_peak_memory_bytes is not None]
        flops = [(r.predicted_flops, r.measured_flops) for r in metered]
        rows.append(
            CostRow(
                stage=stage,
                part=records[0].part,
                kind=kind,
                client_rounds=len(records),
                metered=len(metered),
                peak_memory_bytes=max(r.peak_memory_bytes for r in records),
                measured_peak_memory_bytes=max(peaks, default=None),
                memory_error=max((e for r in metered if (e := r.memory_error) is not None), key=abs, default=None),
                predicted_flops=_mean(r.predicted_flops for r in records),
                measured_flops=_mean(measured for _, measured in flops if measured is not None),
                flops_error=max((predicted / measured - 1 for predicted, measured in flops if measured),
                                key=abs, default=None),
                carried_download_bytes=_mean(r.carried_download_bytes for r in records),
                carried_upload_bytes=_mean(r.carried_upload_bytes for r in records),
                virtual_seconds=_mean(r.virtual_seconds for r in records),
                energy_joules=_mean(r.energy_joules for r in records),
            )
        )  # fmt: skip
    return rows


def _mean(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) / len(known) if known and len(known) == len(listed) else None


def _participation(verdicts: Sequence[VerdictFacts], clients: Sequence[FlightFacts]) -> Participation:
    """Counts of the clients of these verdicts, and their samples: always eligible, ever eligible, took part.

    In a large fleet one verdict stands for several clients, so single clients can't be followed from stage to stage.
    There, clients "ever" eligible are those of the stage that admits most, "always" those of the stage that admits
    fewest.
    """
    if any(v.clients > 1 for v in verdicts):
        return _participation_of_many(verdicts, clients)
    samples = {v.client: v.samples for v in verdicts}
    ever = {v.client for v in verdicts if v.eligible}
    refused = {v.client for v in verdicts if not v.eligible}
    updates = Counter(r.client for r in clients if r.outcome == "finished" and r.client in samples)
    return Participation(
        clients=len(samples),
        samples=sum(samples.values()),
        eligible_always=len(samples.keys() - refused),
        eligible_ever=len(ever),
        took_part=len(updates),
        took_part_samples=sum(samples[c] for c in updates),
        updates=updates.total(),
    )


def _participation_of_many(verdicts: Sequence[VerdictFacts], clients: Sequence[FlightFacts]) -> Participation:
    by_stage: dict[int, list[int]] = {}  # clients, samples, eligible clients
    first_round: dict[str, int] = {}
    for v in verdicts:
        # where clients train one part after another, count each client once: in the first round of its kind
        in_parts = v.part is not UNSET
        if in_parts and first_round.setdefault(v.kind, v.round) != v.round:
            continue
        sums = by_stage.setdefault(0 if in_parts else v.stage, [0, 0, 0])
        for index, number in enumerate((v.clients, v.clients * v.samples, v.clients * v.eligible)):
            sums[index] += number
    samples = {c.client: c.samples for c in clients if c.outcome == "finished"}
    return Participation(
        clients=max(sums[0] for sums in by_stage.values()),
        samples=max(sums[1] for sums in by_stage.values()),
        eligible_always=min(sums[2] for sums in by_stage.values()),
        eligible_ever=max(sums[2] for sums in by_stage.values()),
        took_part=len(samples),
        took_part_samples=sum(samples.values()),
        updates=sum(c.outcome == "finished" for c in clients),
    )


def hardest(facts: RunSummary) -> PlayedStage | None:
    """The stage that admits the smallest share of the clients, of equal ones that with the largest peak.

    None before the first round.
    """

    def ease(stage: PlayedStage) -> tuple[float, int]:
        return share(*fitting(stage)), -max((kind.peak_memory_bytes for kind in stage.kinds.values()), default=0)

    return min(facts.stages, key=ease, default=None)


def rivals_of(runs: Iterable[tuple[Settings, RunSummary]]) -> str | None:
    """What the rows of runs have in common among which one can be the best: their budgets, as text.

    None if a run has no update: where nobody trained, nothing is cheap.
    """
    row = list(runs)
    budgets = {str((settings.fleet.budgets, settings.round.deadline)) for settings, _ in row}
    return " ".join(sorted(budgets)) if all(facts.totals.finished for _, facts in row) else None


def fitting(stage: PlayedStage) -> tuple[int, int]:
    """Clients that fit in a stage, and all of its clients."""
    return sum(kind.eligible for kind in stage.kinds.values()), sum(kind.clients for kind in stage.kinds.values())


def share(part: float, whole: float) -> float:
    """The share of a part; 0 of nothing."""
    return part / whole if whole else 0.0


def peak_of(facts: RunSummary, kind: str) -> int:
    """The largest peak of a kind's clients in any stage, those too that don't fit."""
    return max((stage.kinds[kind].peak_memory_bytes for stage in facts.stages if kind in stage.kinds), default=0)


def compared_split(runs: Sequence[RunSummary]) -> str:
    """The split on which runs are compared, because scores on two splits aren't: that of the first finished run."""
    return next((run.metrics_split for run in runs if run.finished), runs[0].metrics_split)


def compared_scores(runs: Iterable[RunSummary], split: str) -> str:
    """Which scores are compared on this split, in words."""
    of_split = (run for run in runs if run.metrics_split == split)
    return " or ".join(
        dict.fromkeys(
            run.score_words if run.best_of_last is not UNSET else f"{run.score_words}, last evaluation"
            for run in of_split
        )
    )


def evaluation_of(run: Run, samples: Samples, scored: Mapping[str, Any] | None = None) -> EvaluationFacts:
    """What ``evaluation.json`` has, computed for a run whose server has these evaluation samples.

    ``scored`` are descriptions of the models that are evaluated for each kind, by default its own.
    """
    evaluation = run.settings.evaluation
    splits = dict.fromkeys((evaluation.split, evaluation.final))
    chance = {split: _chance(scored or run.models, evaluation, samples.get(split, {})) for split in splits}
    return EvaluationFacts(samples=samples, chance=chance)


def _chance(
    models: Mapping[str, Any], evaluation: EvaluationSettings, samples: Mapping[str, int]
) -> dict[str, dict[str, float]]:
    """Chance level by kind and metric: 1/classes, k/pairs for recall at k if the number of pairs is known, and for
    perplexity the size of the vocabulary."""
    chance: dict[str, dict[str, float]] = {}
    for kind, model in models.items():
        heads = [*model.get("towers", {}).values(), model.get("joint") or {}]
        if vocabulary := next((head["vocabulary"] for head in heads if head.get("predicts")), 0):
            chance[kind] = {"perplexity": float(vocabulary), "token_accuracy": 1 / vocabulary}
            continue
        classes: set[int] = {head["classes"] for head in heads if head.get("classes")}
        if "-" in kind and not classes:
            if kind not in samples:
                continue
            ranked = min(evaluation.pairs, samples[kind])
            if rates := (evaluation.missing or {}).get(kind):
                from edgefl.data.missing import lacking_in_a_test

                lacking = lacking_in_a_test(kind, cast("MissingRates", rates), ranked)
                ranked = int((lacking == 0).sum())  # only complete pairs are ranked
            ranked = max(ranked, 1)
            chance[kind] = {f"r@{k}": min(k / ranked, 1.0) for k in (1, 5, 10)}
            if ranked > evaluation.fold:
                chance[kind]["r@1_sum"] = 2 / ranked + 2 / evaluation.fold
            continue
        if len(classes) == 1:
            (count,) = classes
            chance[kind] = {"accuracy": 1 / count, "balanced_accuracy": 1 / count}
    return chance


# --- several runs ----------------------------------------------------------------------------------------------------


def compare_runs(runs: Mapping[str, RunFacts]) -> RunComparison:
    """Comparison of runs: ``rows``, one per run, and ``gained`` by label, relative to the run named ``reference``.

    ``gained`` counts the clients that a run admits in some stage and the reference run in none, with their samples and
    updates.  The reference is the run with the end-to-end schedule if there is one, otherwise the first run.
    """
    begun = {label: facts for label, facts in runs.items() if facts.told.rounds}
    split = compared_split([facts.told for facts in begun.values()]) if begun else ""
    rows = [_compared_row(label, facts.told, split) for label, facts in begun.items()]
    told = [facts.told for facts in begun.values()]
    scores = "" if all(run.best_of_last is UNSET for run in told) else compared_scores(told, split)
    if len(begun) < 2:
        return RunComparison(split=split, scores=scores, rows=rows)
    reference = next(
        (label for label, facts in begun.items() if facts.told.schedule == "end-to-end"), next(iter(begun))
    )
    base = begun[reference]
    gained = {}
    for label, facts in begun.items():
        # client indices are comparable only if seed, data and fleet are the same
        if label == reference or facts.same_clients != base.same_clients:
            continue
        new = facts.eligible_clients.keys() - base.eligible_clients.keys()
        everyone = facts.told.everyone
        gained[label] = Gained(
            clients=len(new),
            of_clients=everyone.clients,
            samples=sum(facts.eligible_clients[c] for c in new),
            of_samples=everyone.samples,
            took_part=sum(c in facts.updates for c in new),
            updates=sum(facts.updates.get(c, 0) for c in new),
        )
    return RunComparison(split=split, scores=scores, rows=rows, reference=reference, gained=gained)


def _compared_row(label: str, facts: RunSummary, split: str) -> RunRow:
    everyone, totals = facts.everyone, facts.totals
    return RunRow(
        label=label,
        eligible_at_hardest_stage={
            kind: min(stage.kinds[kind].eligible for stage in facts.stages if kind in stage.kinds)
            for kind in facts.kinds
        },
        eligible_ever={kind: each.eligible_ever for kind, each in facts.kinds.items()},
        clients={kind: each.clients for kind, each in facts.kinds.items()},
        took_part_share=everyone.took_part / max(everyone.clients, 1),
        took_part_samples_share=everyone.took_part_samples / max(everyone.samples, 1),
        updates=totals.finished,
        peak_memory_bytes={kind: peak_of(facts, kind) for kind in facts.kinds},
        bytes_per_client_round=totals.bytes_per_client_round,
        energy_joules_per_client_round=totals.energy_joules_per_client_round,
        total_bytes=totals.carried_bytes,
        flops=totals.executed_flops,
        virtual_seconds=facts.virtual_seconds,
        devices={
            name: DeviceClassRow(
                clients=device.clients,
                eligible_always=device.eligible_always,
                eligible_ever=device.eligible_ever,
                took_part=device.took_part,
            )
            for name, device in facts.devices.items()
        },
        metrics={
            kind: {name: values[name] for name in shown_metrics(values)}
            for kind, values in facts.metrics_on(split).items()
        },
        chance=facts.chance if facts.metrics_split == split else {},
    )
