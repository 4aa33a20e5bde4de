"""A trained federation looked at from inside: gradients of its blocks, and where client kinds pull them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from statistics import fmean
from typing import Any, cast

from torch import Tensor

from edgefl import seeds
from edgefl.commands.compose import compose, federation_of, predictor_of
from edgefl.errors import RunError
from edgefl.methods import ServerState
from edgefl.planning import Planner, Setup
from edgefl.runs import Run, checkpoints
from edgefl.runs.checkpoints import KEPT
from edgefl.scenario import Scenario
from edgefl.schedules import part_of
from edgefl.training import Inline, Task
from edgefl.work import Result, Source, Work, distinct

RATE = 2.0**40
"""Learning rate of the one step that gives a gradient away: a power of two, so that it rounds nothing by itself, and
so large that the model's own values are nothing beside it."""

Tensors = Mapping[str, Tensor]
"""By parameter."""
Group = tuple[str, str]
"""A tower, and a block or another part of it."""


@dataclass(frozen=True)
class Trained:
    """A finished run, ready to do works: its set-up, what the server holds at its end, and what clients kept."""

    scenario: Scenario
    setup: Setup
    state: ServerState
    kept: Mapping[int, Mapping[str, Tensor]]
    executor: Inline

    @classmethod
    def of(cls, run: Run, scenario: Scenario, on_message: Callable[[str], None]) -> Trained:
        """From the run's folder.  Raises RunError if its weights can't be read."""
        setup = compose(scenario, on_message)
        kept: dict[int, dict[str, Tensor]] = {}
        if any(setup.method.work(kind, 1).keep for kind in setup.clients.kinds):
            found = checkpoints.latest(run.path / "checkpoints")
            if found is None:
                raise RunError(
                    f"{run.path} has no checkpoint, and what clients keep to themselves is in no other place"
                )
            for name, value in found[1].items():
                if name.startswith(KEPT):
                    _, client, rest = name.split(":", 2)
                    kept.setdefault(int(client), {})[rest] = value
        node = Inline(federation_of(scenario, on_message), scenario.executor.device)
        return cls(scenario, setup, ServerState.first(run.weights()), kept, node)

    def chosen(self, kind: str, count: int) -> list[int]:
        """The clients of a kind with the most samples, of equal ones the first."""
        mine, samples = self.setup.of_kind(kind).tolist(), self.setup.clients.client_samples
        return sorted(mine, key=lambda client: (-int(samples[client]), client))[:count]

    def samples(self, client: int) -> int:
        """A client's private samples."""
        return int(self.setup.clients.client_samples[client])

    def last_round(self, kind: str) -> int | None:
        """The last round in which clients of a kind train their model; None if they never do."""
        own = set(self.setup.method.setting.kinds[kind].trainable())
        for round in range(self.setup.schedule.rounds, 0, -1):
            if self.setup.participates(kind, round) and own & set(self.setup.method.work(kind, round).trainable):
                return round
        return None

    def inputs(self, work: Work, client: int, keep: Sequence[str]) -> dict[str, Tensor]:
        """What a client would start from now, as it travels."""
        kept = self.kept.get(client, {})
        return {**self.state.wire(work), **{name: kept[name] for name in keep if name in kept}}

    def do(self, work: Work, inputs: Mapping[str, Tensor], client: int | None, what: str) -> Result:
        """The result of a work on a client, or of the server."""
        seed = seeds.key(self.setup.seed, f"analysis {what}", 0 if client is None else client)
        return self.executor.submit(Task(work, inputs, client, seed)).result().result


def group_of(name: str) -> Group:
    """Of a parameter: ``image.blocks.3.norm1.bias`` -> image, block 4."""
    tower, part, block = part_of(name)
    return tower, part if block is None else f"block {block + 1}"


def _groups(names: Sequence[str]) -> dict[Group, list[str]]:
    """Names by group, in the order in which they stand."""
    found: dict[Group, list[str]] = {}
    for name in names:
        found.setdefault(group_of(name), []).append(name)
    return found


def _norm(tensors: Mapping[str, Tensor], names: Sequence[str]) -> float:
    return sqrt(sum(float(tensors[name].double().square().sum()) for name in names))


# --- gradients -------------------------------------------------------------------------------------------------------


def gradient_works(work: Work, trainable: Sequence[str], up: Any, source: Source) -> Iterator[tuple[Work, int]]:
    """Works that send up a model from which the mean gradient of a pass is read, each with its batches.

    One for each different private training pass, after the passes that train nothing and come before it.  The model
    is the plain one at full depth: without edits, whose folding would change what is sent, and in float32.
    """
    attention = "device" if work.attention in ("flash", "cudnn") else work.attention
    for pass_ in distinct(work):
        batches = sum(source.counts(pass_).values()) if pass_.train and pass_.data == "private" else 0
        if not batches:
            continue
        before = [p for p in distinct(replace(work, passes=work.passes[: work.passes.index(pass_)])) if not p.train]
        step = {"name": "sgd", "implementation": "for-loop", "accumulation": batches}
        yield (
            replace(
                work, trainable=tuple(n for n in work.trainable if n in set(trainable)), passes=(*before, pass_),
                up=(up,), edits=(), keep=(), optimizer=step, precision="float32", attention=attention,
                scalars={**work.loss_weights, "lr": RATE},
            ),
            batches,
        )  # fmt: skip


def gradient(trained: Trained, kind: str, client: int, round: int) -> tuple[Tensors, Tensors]:
    """The mean gradient over the batches of a client's epoch at the final weights, and these, by parameter, float64."""
    method = trained.setup.method
    own, full = method.setting.kinds[kind].trainable(), method.work(kind, round)
    source = trained.setup.clients.client(client)
    found: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    total = 0
    for work, batches in gradient_works(full.fitted(source.size), own, method.model_payload(kind), source):
        inputs = trained.inputs(work, client, full.keep)
        (sent,) = trained.do(work, inputs, client, "gradient").payloads.values()
        total += batches
        for name in work.trainable:
            weights[name] = inputs[name].double()
            each = (weights[name] - sent[name].double()) * (batches / RATE)
            found[name] = found[name] + each if name in found else each
    return {name: value / total for name, value in found.items()}, weights


def gradients(trained: Trained, kinds: Sequence[str], count: int, on_message: Callable[[str], None]) -> dict[str, Any]:
    """By kind, tower and part: the norm of a client's mean gradient (mean over clients), and its share of the weights'.

    ``weights`` is the norm of the weights there: those of the kind, or the mean over what clients keep to themselves.
    """
    rows = []
    for kind in kinds:
        round, clients = trained.last_round(kind), trained.chosen(kind, count)
        norms: dict[Group, list[tuple[float, float]]] = {}
        for client in clients if round is not None else ():
            on_message(f"gradients of {kind} clients, client {client}")
            found, weights = gradient(trained, kind, client, cast(int, round))
            for group, names in _groups(list(found)).items():
                norms.setdefault(group, []).append((_norm(found, names), _norm(weights, names)))
        for (tower, part), each in norms.items():
            norm, held = (fmean(values) for values in zip(*each, strict=True))
            rows.append(
                {"kind": kind, "tower": tower, "part": part, "clients": len(each), "norm": norm, "weights": held,
                 "relative": norm / held if held else None}
            )  # fmt: skip
    return {"rows": rows}


# --- drift -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pull:
    """Where the clients of a kind pull their model: their mean update by parameter, and norms by part.

    ``norms`` are the mean norms of an update, ``weights`` those of what it started from.
    """

    mean: Mapping[str, Tensor]
    norms: Mapping[Group, float]
    weights: Mapping[Group, float]
    clients: int


def update(trained: Trained, planner: Planner, kind: str, client: int, round: int) -> tuple[Tensors, Tensors]:
    """What a client's real work of a round makes of the parameters that it trains, and what they were, float64."""
    stage = trained.setup.schedule.candidates(round)[0]
    source = trained.setup.clients.client(client)
    work = planner.work(kind, round, stage)[0].fitted(source.size)
    wire = trained.inputs(work, client, work.keep)
    result = trained.do(work, wire, client, "drift")
    inputs = dict(work.received(wire))
    bases, after = work.bases(inputs), dict(result.kept)
    for payload in work.up:
        models = {i.name for i in payload.items if not i.source.startswith("table/")}
        decoded = payload.decoded(result.payloads[payload.name], bases)
        after |= {name: value for name, value in decoded.items() if name in models}
    before = {name: inputs[name].double() for name in work.trainable if name in after and name in inputs}
    return {name: after[name].double() - value for name, value in before.items()}, before


def pull(
    trained: Trained, planner: Planner, kind: str, count: int, round: int, on_message: Callable[[str], None]
) -> Pull:
    """Mean and norms over some clients of a kind, weighted by samples as the server's average is."""
    clients = trained.chosen(kind, count)
    total = sum(max(trained.samples(client), 1) for client in clients)
    mean: dict[str, Tensor] = {}
    norms: dict[Group, float] = {}
    weights: dict[Group, float] = {}
    for client in clients:
        on_message(f"drift of {kind} clients, client {client}")
        share = max(trained.samples(client), 1) / total
        found, before = update(trained, planner, kind, client, round)
        for name, value in found.items():
            mean[name] = mean[name] + share * value if name in mean else share * value
        for group, names in _groups(list(found)).items():
            norms[group] = norms.get(group, 0.0) + share * _norm(found, names)
            weights[group] = weights.get(group, 0.0) + share * _norm(before, names)
    return Pull(mean, norms, weights, len(clients))


def cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor], names: Sequence[str]) -> float | None:
    """Of the angle between two updates in these parameters; None where one doesn't move."""
    lengths = _norm(one, names) * _norm(other, names)
    return sum(float((one[n] * other[n]).sum()) for n in names) / lengths if lengths else None


def drift(trained: Trained, kinds: Sequence[str], count: int, on_message: Callable[[str], None]) -> dict[str, Any]:
    """How far clients of a kind agree, and how far kinds that have the same tower do.

    ``within``: by kind and part, ``moved`` (mean norm of a client's update as a share of the weights') and
    ``consistency`` (norm of the mean update over the mean norm: 1 if all pull the same way).  ``between``: by two kinds
    and part, ``cosine`` of their mean updates, and ``distance`` of their global models as a share of their norms; None
    where nothing moves, or where clients' models never reach the server.
    """
    planner = Planner(trained.setup, predictor_of(trained.scenario))
    pulls = {}
    for kind in kinds:
        if (round := trained.last_round(kind)) is not None:
            pulls[kind] = pull(trained, planner, kind, count, round, on_message)
    within = []
    for kind, found in pulls.items():
        for group, names in _groups(list(found.mean)).items():
            weights, mean = found.weights[group], found.norms[group]
            within.append(
                {"kind": kind, "tower": group[0], "part": group[1], "clients": found.clients,
                 "moved": mean / weights if weights else None,
                 "consistency": _norm(found.mean, names) / mean if mean else None}
            )  # fmt: skip
    between = []
    for a, b in combinations(pulls, 2):
        for group, names in _groups(_shared(trained, a, b)).items():
            common = [n for n in names if n in pulls[a].mean and n in pulls[b].mean]
            common = [n for n in common if pulls[a].mean[n].shape == pulls[b].mean[n].shape]
            between.append(
                {"kinds": [a, b], "tower": group[0], "part": group[1],
                 "cosine": cosine(pulls[a].mean, pulls[b].mean, common) if common else None,
                 "distance": _distance(trained, a, b, names)}
            )  # fmt: skip
    return {"within": within, "between": between}


def _shared(trained: Trained, one: str, other: str) -> list[str]:
    """Parameters of one name and shape in two kinds' models."""
    mine, theirs = (trained.setup.method.setting.kinds[kind] for kind in (one, other))
    specs, named = theirs.parameters(), set(theirs.trainable())
    return [name for name in mine.trainable() if name in named and mine.parameters()[name] == specs[name]]


def _distance(trained: Trained, one: str, other: str, names: Sequence[str]) -> float | None:
    """Norm of the difference of two kinds' global models, over the mean of their norms."""
    if not all(_sent(trained, kind) for kind in (one, other)):
        return None
    mine, theirs = ({n: trained.state.tensors[f"{kind}/{n}"].double() for n in names} for kind in (one, other))
    lengths = (_norm(mine, names) + _norm(theirs, names)) / 2
    return _norm({n: mine[n] - theirs[n] for n in names}, names) / lengths if lengths else None


def _sent(trained: Trained, kind: str) -> bool:
    """Whether the models of clients of this kind reach the server."""
    round = trained.last_round(kind)
    work = trained.setup.method.work(kind, round) if round is not None else None
    return work is not None and any(not i.source.startswith("table/") for p in work.up for i in p.items)
