"""What a method is: the works it gives, and what it makes of what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from edgefl import models, seeds
from edgefl.memo import cache_folder, remember, remembered
from edgefl.methods.aggregation import Cohort, Mix, by_samples, parts_of
from edgefl.methods.aggregation_options import MEAN, AggregationOptions
from edgefl.methods.robust import averaged
from edgefl.methods.server_optimizers import stepped
from edgefl.methods.state import ServerState, Update
from edgefl.models import ModelOptions
from edgefl.work import Address, Item, Pass, Payload, Result, TensorSpec, Work, digest
from edgefl.work.options import TrainingOptions


@dataclass(frozen=True)
class Kind:
    """A kind of client: its modalities, its task ("classify" or "retrieve") and its model at full depth.

    ``weights`` names for some towers where their first values come from; no cost depends on it.
    """

    name: str
    modalities: tuple[str, ...]
    task: str
    model: Mapping[str, Any]
    weights: Mapping[str, str] = field(default_factory=dict)

    @property
    def pattern(self) -> str:
        """The modality pattern of its samples."""
        return "-".join(self.modalities)

    def parameters(self) -> dict[str, TensorSpec]:
        """Parameters and buffers of the model by name, in order; costs nothing after the first time."""
        parameters, buffers = _tensors(_Frozen(self.model))
        return {**parameters, **buffers}

    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters, which can train as buffers can't."""
        return tuple(_tensors(_Frozen(self.model))[0])

    @property
    def dimension(self) -> int:
        """Width of the model's representations (its ``embed``)."""
        return _dimension(_Frozen(self.model))


class _Frozen:
    """A description as a key of a cache."""

    def __init__(self, description: Mapping[str, Any]):
        self.description = description
        self._text = repr(description)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self._text == other._text


Specs = dict[str, TensorSpec]


@cache
def _dimension(key: _Frozen) -> int:
    with torch.device("meta"):
        return int(models.build(key.description).dimension)  # type: ignore[arg-type]


@cache
def _tensors(key: _Frozen) -> tuple[Specs, Specs]:
    """Parameters and buffers of a description: as remembered on disk, since a large model takes a while to build."""
    folder, name = (
        cache_folder() / "shapes",
        digest([key.description, *models.versions(), *models.code(key.description)]),
    )
    found = remembered(folder, name, _specs, "shapes")
    if found is None:
        module = models.on_meta(key.description)
        found = (
            {n: TensorSpec.of(t) for n, t in module.named_parameters()},
            {n: TensorSpec.of(t) for n, t in module.named_buffers()},
        )
        remember(folder, name, [[[n, list(s.shape), s.dtype] for n, s in part.items()] for part in found])
    return found


def _specs(raw: Any) -> tuple[Specs, Specs]:
    parameters, buffers = ({n: TensorSpec(tuple(shape), dtype) for n, shape, dtype in part} for part in raw)
    return parameters, buffers


@dataclass(frozen=True)
class Setting:
    """What a method is told: the client kinds, how clients train, and how the server evaluates.

    For a method with a model of the server's own: ``model`` and ``facts`` are what clients' models are described from,
    ``public`` counts the public samples by pattern.
    """

    kinds: Mapping[str, Kind]
    training: TrainingOptions
    evaluation_batch: int = 100
    pairs: int = 500
    model: ModelOptions | None = None
    facts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    public: Mapping[str, int] = field(default_factory=dict)
    aggregation: AggregationOptions = MEAN
    fold: int = 1000


class Method:
    """A method of federated learning.  It never names a schedule: works are written for the full depth.

    Subclass, give ``Options``, and override what differs; the defaults are FedAvg per client kind.
    """

    class Options(BaseModel):
        """Fields of the scenario's ``method`` section besides ``name``."""

        model_config = ConfigDict(extra="forbid", frozen=True)
        name: str = ""

    summary: ClassVar[str] = ""
    """One line for ``edgefl methods``."""
    needs: ClassVar[Mapping[str, Any]] = {}
    """Sections of a scenario that the method can't do without; ``check_method`` adds them to its federation."""

    def __init__(self, options: Any, setting: Setting):
        self.options, self.setting = options, setting

    def initial(self, seed: int) -> ServerState:
        """Random initial models.  Towers of the same name and shape start equal in every client kind."""
        common: dict[str, Tensor] = {}
        tensors: dict[Address, Tensor] = {}
        for kind in self.setting.kinds.values():
            with torch.random.fork_rng([]):
                torch.manual_seed(seeds.key(seed, "initial", len(kind.modalities)))
                module = models.build(kind.model)
            models.load_weights(module, kind.model, kind.weights)
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                shared = common.setdefault(name, value.detach())
                tensors[f"{kind.name}/{name}"] = shared if shared.shape == value.shape else value.detach()
        return ServerState.first(tensors)

    def participates(self, kind: str, round: int) -> bool:
        """Whether clients of this kind may be drawn in this round."""
        return True

    def work(self, kind: str, round: int) -> Work:
        """A client's work at full depth: its whole model down and up, and one pass per local epoch."""
        described, training = self.setting.kinds[kind], self.setting.training
        step = "classify" if described.task == "classify" else "contrast"
        pass_ = Pass(step, "private", (described.pattern,), training.batch_of(described.pattern), True, {})
        model = self.model_payload(kind)
        return Work(
            kind,
            described.model,
            described.trainable(),
            (pass_,) * training.epochs,
            (model,),
            (model,),
            optimizer=training.optimizer_of(round, described.pattern),
            precision=training.precision,
            attention=training.attention,
        )

    def model_payload(self, kind: str) -> Payload:
        """The whole model of a client kind."""
        parameters = self.setting.kinds[kind].parameters()
        return Payload("model", tuple(Item(n, s.shape, s.dtype, f"{kind}/{n}") for n, s in parameters.items()))

    def before(self, state: ServerState, round: int) -> Sequence[Work]:
        """Works of the server before clients are drawn."""
        return ()

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """Works of the server once updates are aggregated."""
        return ()

    def absorb(self, state: ServerState, work: Work, result: Result) -> ServerState:
        """The state after a server work: what it sends up replaces what stands at those addresses."""
        sent = {i.source: result.payloads[p.name][i.name] for p in work.up for i in p.items}
        held = {a: state.tensors.get(a, value) for a, value in sent.items()}
        return state.changed({a: value.to(held[a].dtype) for a, value in sent.items()})

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """The next state.  Pure, and independent of the order of ``updates``.  Default: FedAvg per client kind."""
        return state.changed(self.combine(state, updates, lambda address, cohort: {address: 1.0}))

    def combine(
        self,
        state: ServerState,
        updates: Sequence[Update],
        mix: Mix,
        *,
        weight: Callable[[Update], float] = by_samples,
        among: str = "",
    ) -> dict[Address, Tensor]:
        """The parameters that change, as the scenario's ``aggregation`` section has it; tables are the method's own.

        What the server's optimizer remembers is among them.  ``among`` limits it to the addresses that begin so.
        """

        def limited(address: Address, cohort: Cohort) -> Mapping[Address, float]:
            return mix(address, cohort) if address.startswith(among) else {}

        parameters = {a: t for a, t in state.tensors.items() if averaged(a)}
        parts = parts_of(parameters, updates, limited, weight, self.setting.aggregation)
        kinds = self.setting.kinds.values()
        buffers = {f"{kind.name}/{name}" for kind in kinds for name in kind.parameters().keys() - {*kind.trainable()}}
        return stepped(state.tensors, parts, buffers, self.setting.aggregation)

    def evaluate(self, kind: str, split: str) -> Work:
        """The server's work that scores the model of a client kind on a split of the server's data."""
        described = self.setting.kinds[kind]
        step = "score-classify" if described.task == "classify" else "score-retrieve"
        args = {} if described.task == "classify" else {"samples": self.setting.pairs}
        if args and self.setting.pairs > self.setting.fold:
            args["fold"] = self.setting.fold
        pass_ = Pass(step, split, (described.pattern,), self.setting.evaluation_batch, False, args)  # type: ignore[arg-type]
        attention = self.setting.training.attention
        if attention in ("flash", "cudnn"):
            attention = "device"  # an evaluation is in float32, which these don't take on a GPU
        return Work(kind, described.model, (), (pass_,), (self.model_payload(kind),), attention=attention)
