"""FedCola's modality-agnostic version: image and text clients train one transformer, parts of which are private.

Clients have one modality each.  Chosen block parameters are shared by all modalities (phi^ms in the paper), the others
are private to one.  The server compensates for the modality that an update doesn't come from, gives modalities equal
weight, and may start with rounds of a single modality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from edgefl.errors import MethodError, suggestion
from edgefl.methods.aggregation.combine import Cohort
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Kind, Setting
from edgefl.methods.state import ServerState, Update
from edgefl.work import Address, Work

LAYERS = {"attention": ("attn", "attention"), "ffn": ("mlp", "ffn")}
"""Names of a block's layers in each scope."""
SOURCES = {"vision-attention": "image", "language-attention": "text"}
"""The only modality whose clients update the shared part, by option."""


class WarmUp(BaseModel):
    """``warmup: {modality: image, rounds: 5, heat: 5}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    modality: Literal["image", "text", "audio"] = Field(
        "image", description="modality whose clients train first, without the others"
    )
    rounds: PositiveInt = Field(5, description="rounds with this modality only")
    heat: NonNegativeInt = Field(
        0, description="further rounds in which the other clients train their private part only (heat distribution)"
    )


class FedColaMat(Method):
    """Shared and private parts, modality compensation, balance, warm-up: see docs/explanation/methods/fedcola.md."""

    class Options(Method.Options):
        """``method: {name: fedcola-mat, share: attention, compensation: true, balance: scale}``."""

        name: Literal["fedcola-mat"] = "fedcola-mat"
        share: Literal["none", "all", "attention", "ffn", "vision-attention", "language-attention"] = Field(
            "attention",
            description="block parameters that all modalities share; vision-attention and language-attention share "
            "attention, which only that modality's clients update; none: Uni-FedAVG",
        )
        compensation: bool = Field(
            True, description="whether an update is scaled by the share of the cohort's samples that it comes from"
        )
        balance: Literal["none", "mean", "scale"] = Field(
            "scale",
            description="weights of the modalities: by samples (none); shared parameters averaged over modalities "
            "equally (mean, Balanced MAT); sample counts scaled so that every modality of a cohort has as many "
            "(scale)",
        )
        warmup: WarmUp | None = Field(
            None, description="rounds of one modality first: {modality: image, rounds: 5, heat: 0}; null: none"
        )
        init: Literal["common", "own"] = Field(
            "common",
            description="parameters that start equal in all modalities: all blocks (common), or the shared ones (own)",
        )

    summary = "one transformer for uni-modal clients of several modalities (FedCola, modality-agnostic version)"
    options: FedColaMat.Options

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        self.single: dict[str, Kind] = {k.modalities[0]: k for k in setting.kinds.values() if len(k.modalities) == 1}
        if not self.single:
            raise MethodError("fedcola-mat needs clients of one modality each, and there are none")
        source, warm = SOURCES.get(options.share), options.warmup.modality if options.warmup else None
        for field, modality in (("share", source), ("warmup.modality", warm)):
            if modality and modality not in self.single:
                raise MethodError(
                    f"{field} needs {modality} clients; there are only {', '.join(self.single)} clients"
                    f"{suggestion(modality, self.single)}"
                )
        if options.share != "none":
            self._check_shared()

    def _check_shared(self) -> None:
        """Raises MethodError unless shared parameters have the same shape in every tower."""
        first, *others = ((m, self._shared_shapes(k)) for m, k in self.single.items())
        if not first[1]:
            raise MethodError(f"share: {self.options.share} matches no layers in the blocks of the {first[0]} tower")
        for modality, shapes in others:
            different = sorted(shapes.items() ^ first[1].items())
            if different:
                name = different[0][0]
                raise MethodError(
                    f"shared parameters need the same shape in all modalities, but {name} is "
                    f"{first[1].get(name, 'absent')} in {first[0]} and {shapes.get(name, 'absent')} in {modality}; "
                    "give the towers blocks of the same kind, width and number, or set share: none"
                )

    def _shared_shapes(self, kind: Kind) -> dict[str, tuple[int, ...]]:
        """Shapes of the shared parameters by their name within a tower."""
        return {n.split(".", 1)[1]: s.shape for n, s in kind.parameters().items() if self.shared(n)}

    def shared(self, name: str) -> bool:
        """Whether a parameter is shared by all modalities; embeddings, final norms and heads never are."""
        _, part, _, layer, *_ = (*name.split("."), "", "", "")
        if part != "blocks" or self.options.share == "none":
            return False
        scope = "attention" if self.options.share in SOURCES else self.options.share
        return scope == "all" or layer in LAYERS[scope]

    def initial(self, seed: int) -> ServerState:
        """Initial models with equal blocks, or equal shared parameters; pre-trained weights override random ones."""
        tensors = dict(super().initial(seed).tensors)
        order = sorted(self.single.items(), key=lambda item: item[0] not in item[1].weights)
        model, kind = order[0]
        for modality, other in order[1:]:
            for name, spec in other.parameters().items():
                common = self.options.init == "common" and modality not in other.weights
                source = f"{kind.name}/{model}.{name.split('.', 1)[1]}"
                alike = source in tensors and tensors[source].shape == spec.shape
                if alike and ".blocks." in name and (common or self.shared(name)):
                    tensors[f"{other.name}/{name}"] = tensors[source]
        return ServerState.first(tensors)

    # client -----------------------------------------------------------------------------------------------------

    def participates(self, kind: str, round: int) -> bool:
        """True for clients of one modality; in warm-up only for those of the warm-up modality."""
        modalities, warmup = self.setting.kinds[kind].modalities, self.options.warmup
        if len(modalities) > 1:
            return False
        return warmup is None or round > warmup.rounds or modalities == (warmup.modality,)

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work; in heat distribution the shared part of the other modalities is frozen, but still sent.

        This damps the shared update, as in the public code.
        """
        work, warmup = super().work(kind, round), self.options.warmup
        if warmup is None or not warmup.rounds < round <= warmup.rounds + warmup.heat:
            return work
        if self.setting.kinds[kind].modalities == (warmup.modality,):
            return work
        return replace(work, trainable=tuple(n for n in work.trainable if not self.shared(n)))

    # server -----------------------------------------------------------------------------------------------------

    def mix(self, address: Address, cohort: Cohort) -> Mapping[Address, float]:
        """Shares of the updates that change this address.

        Compensation gives every update n_i over the samples of the whole cohort, which is the paper's extension of
        each client's model by last round's values; without it n_i is taken over the clients that sent it.
        """
        options, (kind, name) = self.options, address.split("/", 1)
        modalities = self.setting.kinds[kind].modalities
        if len(modalities) > 1:
            return {address: 1.0}
        present = {m: n for m, k in self.single.items() if (n := cohort.by_kind.get(k.name, 0.0))}
        largest = max(present.values(), default=0.0)
        scale = {m: largest / n if options.balance == "scale" else 1.0 for m, n in present.items()}
        shared = self.shared(name)
        if shared and options.balance == "mean":
            scale = {m: largest / n for m, n in present.items()}
        sources = modalities
        if shared:
            source = SOURCES.get(options.share)
            sources = (source,) if source else tuple(self.single)
        suffix = name.split(".", 1)[1]
        weights = {
            b: scale[m] * n
            for m in sources
            if m in present and (n := cohort.by_address.get(b := f"{self.single[m].name}/{m}.{suffix}", 0.0))
        }
        total = sum(scale[m] * n for m, n in present.items()) if options.compensation else sum(weights.values())
        return {b: n / total for b, n in weights.items()} if total else {}

    streams = True

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Shared and private parameters in one coefficient table."""
        return state.changed(self.combine(state, updates, self.mix))
