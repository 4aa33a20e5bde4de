"""A trained federation: gradients of its blocks, drift of client kinds' updates, and matching by prototypes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from statistics import fmean
from typing import Any, cast

from torch import Tensor

from edgefl import seeds
from edgefl.commands.analyse.answer import (
    CompletionRecord,
    Drift,
    DriftBetween,
    DriftWithin,
    GradientRow,
    Gradients,
    MatchingRow,
    StageGradient,
)
from edgefl.errors import RunError
from edgefl.methods import Method, ServerState
from edgefl.methods.prototypes.matching import DISTANCES, MATCHED, MODELS
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.records.clients import FlightRecord
from edgefl.records.record import UNSET
from edgefl.records.rounds import Round
from edgefl.runs import Run, checkpoints
from edgefl.runs.kept import Values
from edgefl.scenario import Scenario
from edgefl.schedules import Stage, part_of
from edgefl.setup.compose import compose, federation_of, predictor_of
from edgefl.training import Assignment, Inline
from edgefl.work import Source, Update, Work, distinct
from edgefl.work.description import OptimizerSettings

RATE = 2.0**40
"""Learning rate of the step from which a gradient is read: a power of two, which adds no rounding, and so large that
the model's own values are negligible beside the step."""

Tensors = Mapping[str, Tensor]
"""Tensors by parameter."""
Group = tuple[str, str]
"""A tower, and a block or another part of it."""


@dataclass(frozen=True)
class Trained:
    """A finished run whose works can be run: its set-up, the server's final state, and what clients keep.

    ``scored`` is the stage at which the run's last evaluation scored the server's models.
    """

    scenario: Scenario
    run: Run
    setup: Setup
    state: ServerState
    kept: Mapping[int, Mapping[str, Tensor]]
    executor: Inline
    scored: Stage

    @classmethod
    def from_run(cls, run: Run, scenario: Scenario, on_message: Callable[[str], None]) -> Trained:
        """From the run's folder.  Raises RunError if its weights can't be read."""
        setup = compose(scenario, on_message)
        kept: Mapping[int, Mapping[str, Tensor]] = {}
        if any(setup.method.client_work(kind, 1, variant).keep for kind, variant in setup.variants):
            checkpoint = checkpoints.latest(run.path / "checkpoints", hashes=False)
            if checkpoint is None:
                raise RunError(
                    f"{run.path} has no checkpoint, and the parameters that clients keep are saved only there"
                )
            kept = Values.from_checkpoint(run.path, *checkpoint[1:])
        node = Inline(federation_of(scenario, on_message), scenario.executor.devices[0])
        (last,) = deque(run.read(Round), maxlen=1)
        part, schedule = last.scored_part, setup.schedule
        scored = schedule.stage(schedule.rounds) if part is UNSET else schedule.offered[part - 1]
        return cls(scenario, run, setup, ServerState.from_tensors(run.weights()), kept, node, scored)

    def largest_clients(self, kind: str, count: int) -> list[int]:
        """The ``count`` clients of a kind with the most samples; of equal ones the first."""
        clients, samples = self.setup.of_kind(kind).tolist(), self.setup.clients.client_samples
        return sorted(clients, key=lambda client: (-int(samples[client]), client))[:count]

    def samples(self, client: int) -> int:
        """The number of a client's private samples."""
        return int(self.setup.clients.client_samples[client])

    def last_round(self, kind: str) -> int | None:
        """The last round in which clients of a kind train their model; None if they never do."""
        method = self.setup.method
        own = set(method.setting.kinds[kind].trainable())
        for round in range(self.setup.schedule.rounds, 0, -1):
            works = (method.client_work(kind, round, variant) for variant in method.variants[kind])
            if self.setup.participates(kind, round) and any(own & set(work.trainable) for work in works):
                return round
        return None

    def inputs(self, work: Work, client: int, keep: Sequence[str]) -> dict[str, Tensor]:
        """The tensors that a client would start from, as they are sent."""
        kept = self.kept.get(client, {})
        return {**self.state.wire(work), **{name: kept[name] for name in keep if name in kept}}

    def do(self, work: Work, inputs: Mapping[str, Tensor], client: int | None, purpose: str) -> Update:
        """Run a work on a client's data, or on the server's."""
        seed = seeds.key(self.setup.seed, f"analysis {purpose}", 0 if client is None else client)
        return self.executor.submit(Assignment(work.form, work.scalars, inputs, client, seed)).result()


def group_of(name: str) -> Group:
    """The tower and part of a parameter: ``image.blocks.3.norm1.bias`` -> image, block 4."""
    tower, part, block = part_of(name)
    return tower, part if block is None else f"block {block + 1}"


def _groups(names: Sequence[str]) -> dict[Group, list[str]]:
    """Names by group, in their order."""
    groups: dict[Group, list[str]] = {}
    for name in names:
        groups.setdefault(group_of(name), []).append(name)
    return groups


def _norm(tensors: Mapping[str, Tensor], names: Sequence[str]) -> float:
    return sqrt(sum(float(tensors[name].double().square().sum()) for name in names))


# --- gradients -------------------------------------------------------------------------------------------------------


def gradient_works(work: Work, trainable: Sequence[str], up: Any, source: Source) -> Iterator[tuple[Work, int]]:
    """Works that upload a model from which the mean gradient of a pass is read, each with its number of batches.

    One work for each distinct private training pass, with the passes before it that train nothing.  The model has full
    depth, float32, and no edits, whose folding would change what is sent.
    """
    attention = "device" if work.attention in ("flash", "cudnn") else work.attention
    for pass_ in distinct(work):
        batches = sum(source.counts(pass_).values()) if pass_.train and pass_.data == "private" else 0
        if not batches:
            continue
        before = [p for p in distinct(replace(work, passes=work.passes[: work.passes.index(pass_)])) if not p.train]
        step: OptimizerSettings = {"name": "sgd", "implementation": "for-loop", "accumulation": batches}
        yield (
            replace(
                work, trainable=tuple(n for n in work.trainable if n in set(trainable)), passes=(*before, pass_),
                up=(up,), edits=(), keep=(), optimizer=step, precision="float32", attention=attention,
                scalars={**work.loss_weights, "lr": RATE},
            ),
            batches,
        )  # fmt: skip


def gradient(trained: Trained, kind: str, client: int, round: int) -> tuple[Tensors, Tensors]:
    """The mean gradient over a client's batches at the final weights, and the weights, both by parameter in float64."""
    method = trained.setup.method
    own = method.setting.kinds[kind].trainable()
    full = method.client_work(kind, round, method.variant_of(kind, client))
    source = trained.setup.clients.client(client)
    sums: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    total = 0
    for work, batches in gradient_works(full.limit_batches(source.size), own, method.model_payload(kind), source):
        inputs = trained.inputs(work, client, full.keep)
        (uploaded,) = trained.do(work, inputs, client, "gradient").payloads.values()
        total += batches
        for name in work.trainable:
            weights[name] = inputs[name].double()
            gradient_sum = (weights[name] - uploaded[name].double()) * (batches / RATE)
            sums[name] = sums[name] + gradient_sum if name in sums else gradient_sum
    return {name: value / total for name, value in sums.items()}, weights


def gradients(trained: Trained, kinds: Sequence[str], count: int, on_message: Callable[[str], None]) -> Gradients:
    """By kind, tower and part: the norm of a client's mean gradient (mean over clients), and its ratio to the weights'.

    ``weights`` is the norm of the weights: the kind's, or the mean over clients that keep their own.
    """
    rows = []
    for kind in kinds:
        round, clients = trained.last_round(kind), trained.largest_clients(kind, count)
        norms: dict[Group, list[tuple[float, float]]] = {}
        for client in clients if round is not None else ():
            on_message(f"gradients of {kind} clients, client {client}")
            mean, weights = gradient(trained, kind, client, cast(int, round))
            for group, names in _groups(list(mean)).items():
                norms.setdefault(group, []).append((_norm(mean, names), _norm(weights, names)))
        for (tower, part), pairs in norms.items():
            norm, weight = (fmean(values) for values in zip(*pairs, strict=True))
            rows.append(
                GradientRow(
                    kind=kind,
                    tower=tower,
                    part=part,
                    clients=len(pairs),
                    norm=norm,
                    weights=weight,
                    relative=norm / weight if weight else None,
                )
            )
    return Gradients(rows=rows, stages=noted_gradients(trained.run))


def noted_gradients(run: Run) -> list[StageGradient]:
    """What clients noted in the last round in which they trained each block at each stage (LW-FedMML, Fig. 8)."""
    noted: dict[tuple[str, str, int, int], dict[int, list[float]]] = {}
    for flight in run.read(FlightRecord):
        for name, norm in (flight.metrics or {}).items():
            if name.startswith("gradient[") and norm is not None:
                tower, _, block = part_of(name.removeprefix("gradient[").removesuffix("]"))
                rounds = noted.setdefault((flight.kind, tower, flight.stage, block or 0), {})
                rounds.setdefault(flight.round, []).append(norm)
    last_noted = {at: noted[at][max(noted[at])] for at in sorted(noted, key=lambda at: at[1:])}
    means, rows = {at: fmean(norms) for at, norms in last_noted.items()}, []
    for (kind, tower, stage, block), norm in means.items():
        last, _, its_stage = max((b, s == stage, s) for k, t, s, b in means if (k, t) == (kind, tower))
        top = means[kind, tower, its_stage, last]
        rows.append(
            StageGradient(
                kind=kind, tower=tower, part=f"block {block + 1}", stage=stage, norm=norm,
                clients=len(last_noted[kind, tower, stage, block]), relative=norm / top if top else None,
            )
        )  # fmt: skip
    return rows


# --- drift -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pull:
    """The clients of a kind: their mean update by parameter, and norms by part.

    ``norms`` are the mean norms of the updates, ``weights`` those of the weights before them.
    """

    mean: Mapping[str, Tensor]
    norms: Mapping[Group, float]
    weights: Mapping[Group, float]
    clients: int


def train_locally(
    trained: Trained, planner: Planner, kind: str, client: int, round: int
) -> tuple[Work, Tensors, Tensors]:
    """A client's work of a round from the final weights, the tensors that it starts from, and what it left and sent."""
    stage = trained.setup.schedule.candidates(round)[0]
    source = trained.setup.clients.client(client)
    work, _ = planner.work(kind, round, stage, trained.setup.variant_of(client))
    work = work.limit_batches(source.size)
    wire = trained.inputs(work, client, work.keep)
    result = trained.do(work, wire, client, "drift")
    inputs = dict(work.starting_tensors(wire))
    bases, after = work.bases(inputs), dict(result.kept)
    for payload in work.up:
        models = {i.name for i in payload.items if not i.is_beside_model}
        decoded = payload.decode_tensors(result.payloads[payload.name], bases)
        after |= {name: value for name, value in decoded.items() if name in models}
    return work, inputs, after


def update(trained: Trained, planner: Planner, kind: str, client: int, round: int) -> tuple[Tensors, Tensors]:
    """A client's update of the parameters that it trains in a round, and their values before, both in float64."""
    work, inputs, after = train_locally(trained, planner, kind, client, round)
    before = {name: inputs[name].double() for name in work.trainable if name in after and name in inputs}
    return {name: after[name].double() - value for name, value in before.items()}, before


def pull(
    trained: Trained, planner: Planner, kind: str, count: int, round: int, on_message: Callable[[str], None]
) -> Pull:
    """Mean update and norms over ``count`` clients of a kind, weighted by samples as in the server's average."""
    clients = trained.largest_clients(kind, count)
    total = sum(max(trained.samples(client), 1) for client in clients)
    mean: dict[str, Tensor] = {}
    norms: dict[Group, float] = {}
    weights: dict[Group, float] = {}
    for client in clients:
        on_message(f"drift of {kind} clients, client {client}")
        share = max(trained.samples(client), 1) / total
        moved, before = update(trained, planner, kind, client, round)
        for name, value in moved.items():
            mean[name] = mean[name] + share * value if name in mean else share * value
        for group, names in _groups(list(moved)).items():
            norms[group] = norms.get(group, 0.0) + share * _norm(moved, names)
            weights[group] = weights.get(group, 0.0) + share * _norm(before, names)
    return Pull(mean, norms, weights, len(clients))


def cosine(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Sequence[str]) -> float | None:
    """Cosine of the angle between two updates of these parameters; None if one of them is zero."""
    lengths = _norm(a, names) * _norm(b, names)
    return sum(float((a[n] * b[n]).sum()) for n in names) / lengths if lengths else None


def drift(trained: Trained, kinds: Sequence[str], count: int, on_message: Callable[[str], None]) -> Drift:
    """Agreement of updates among the clients of a kind, and between kinds that have the same tower.

    ``within``: by kind and part, ``moved`` (mean norm of a client's update over the weights' norm) and ``consistency``
    (norm of the mean update over the mean norm: 1 if all updates have one direction).  ``between``: by two kinds and
    part, ``cosine`` of their mean updates, and ``distance`` of their global models over their norms; None where updates
    are zero, or where clients' models never reach the server.
    """
    planner = Planner(trained.setup, predictor_of(trained.scenario))
    pulls = {}
    for kind in kinds:
        if (round := trained.last_round(kind)) is not None:
            pulls[kind] = pull(trained, planner, kind, count, round, on_message)
    within = []
    for kind, pulled in pulls.items():
        for group, names in _groups(list(pulled.mean)).items():
            weights, mean = pulled.weights[group], pulled.norms[group]
            within.append(
                DriftWithin(
                    kind=kind,
                    tower=group[0],
                    part=group[1],
                    clients=pulled.clients,
                    moved=mean / weights if weights else None,
                    consistency=_norm(pulled.mean, names) / mean if mean else None,
                )
            )
    between = []
    for a, b in combinations(pulls, 2):
        for group, names in _groups(_shared_parameters(trained, a, b)).items():
            common = [n for n in names if n in pulls[a].mean and n in pulls[b].mean]
            common = [n for n in common if pulls[a].mean[n].shape == pulls[b].mean[n].shape]
            between.append(
                DriftBetween(
                    kinds=[a, b],
                    tower=group[0],
                    part=group[1],
                    cosine=cosine(pulls[a].mean, pulls[b].mean, common) if common else None,
                    distance=_distance(trained, a, b, names),
                )
            )
    return Drift(within=within, between=between)


def _shared_parameters(trained: Trained, a: str, b: str) -> list[str]:
    """Trainable parameters of the same name and shape in two kinds' models."""
    model_a, model_b = (trained.setup.method.setting.kinds[kind] for kind in (a, b))
    specs, trainable_b = model_b.parameters(), set(model_b.trainable())
    return [name for name in model_a.trainable() if name in trainable_b and model_a.parameters()[name] == specs[name]]


def _distance(trained: Trained, a: str, b: str, names: Sequence[str]) -> float | None:
    """Norm of the difference of two kinds' global models, over the mean of their norms."""
    if not all(is_model_sent(trained, kind) for kind in (a, b)):
        return None
    tensors_a, tensors_b = ({n: trained.state.tensors[f"{kind}/{n}"].double() for n in names} for kind in (a, b))
    lengths = (_norm(tensors_a, names) + _norm(tensors_b, names)) / 2
    return _norm({n: tensors_a[n] - tensors_b[n] for n in names}, names) / lengths if lengths else None


def is_model_sent(trained: Trained, kind: str) -> bool:
    """Whether the models of clients of this kind reach the server."""
    round = trained.last_round(kind)
    method = trained.setup.method
    works = [] if round is None else [method.client_work(kind, round, variant) for variant in method.variants[kind]]
    return any(not i.is_beside_model for work in works for p in work.up for i in p.items)


def matches_nothing(method: Method, name: str) -> str | None:
    """Why a method has no matching to analyse, None if it has."""
    return None if hasattr(method.options, "inference") else f"{name} matches no prototypes (pmcmfl does)"


def no_prototypes(trained: Trained) -> str | None:
    """Why a run of a method that matches has no prototypes to match with, None if it has."""
    wanted = [f"table/prototypes.{modality}" for modality in getattr(trained.setup.method, "modalities", ())]
    if wanted and all(address in trained.state.tensors for address in wanted):
        return None
    return f"{trained.scenario.method_name} made no prototypes in this run: its options don't need them"


def matching(trained: Trained, kinds: Sequence[str], split: str, on_message: Callable[[str], None]) -> CompletionRecord:
    """The run's final state, evaluated with each ``inference`` that completes samples with one modality.

    By kind, ``inference`` and ``pattern``: the accuracy, and how often the true class is among the 1, 5, 10 and 20 best
    matches (None for zeros, noise and the oracle, which match nothing).  The run's own matching is ``own``.
    """
    method, setup = trained.setup.method, trained.setup
    own = method.options.inference
    stage = trained.scored
    rows: list[MatchingRow] = []
    for inference in dict.fromkeys(("zero", *DISTANCES, own, "oracle")):
        on_message(f"matching by {inference}")
        change: dict[str, object] = {"inference": inference}
        if inference not in MODELS:
            change["matching"] = None
            if inference not in DISTANCES:
                change["mix"] = 1
        completed = type(method)(method.options.model_copy(update=change), method.setting)
        evaluated: list[tuple[Any, dict[str, float]]] = []
        for kind in kinds:
            work = setup.restrict_to_stage(completed.evaluate(kind, split), stage)
            metrics = next((known_metrics for known, known_metrics in evaluated if known == work), None)
            if metrics is None:
                metrics = dict(trained.do(work, trained.state.wire(work), None, f"matching {inference}").metrics)
                evaluated.append((work, metrics))
            for pattern in dict.fromkeys(pattern for pass_ in work.passes for pattern in pass_.patterns):
                alone = len({p for pass_ in work.passes for p in pass_.patterns}) == 1
                whole = pattern == method.setting.kinds[kind].pattern
                accuracy = metrics.get(f"accuracy[{pattern}]", metrics.get("accuracy") if whole or alone else None)
                if accuracy is None:
                    continue
                rows.append(
                    MatchingRow(
                        kind=kind,
                        inference=inference,
                        own=inference == own,
                        pattern=pattern,
                        accuracy=accuracy,
                        matched={str(k): metrics.get(f"matched@{k}[{pattern}]") for k in MATCHED},
                    )
                )
    return CompletionRecord(split=split, own=own, rows=rows)
