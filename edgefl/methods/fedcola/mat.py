"""FedCola's modality-agnostic version: image and text clients train one transformer, parts of which are private.

Clients have one modality each.  Chosen block parameters are shared by all modalities (phi^ms in the paper), the others
are private to one.  The server compensates for the modality that an update doesn't come from, gives modalities equal
weight, and may start with rounds of a single modality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from edgefl.errors import MethodError, suggestion
from edgefl.methods.aggregation import Cohort
from edgefl.methods.aggregation.combine import Source, address_of
from edgefl.methods.fedcola.stacks import Key, KeyRows, Stack, shares, sources
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Kind, Setting
from edgefl.methods.state import ServerState
from edgefl.registry.part_fields import Fields
from edgefl.work import Address, Work
from edgefl.work.update import Update

SCOPES = {"attention": "attention", "ffn": "mlp"}
"""What each option shares, as a stack calls it."""
SOURCES = {"vision-attention": "image", "language-attention": "text"}
"""The only modality whose clients update the shared part, by option."""


class WarmUp(Fields):
    """``warmup: {modality: image, rounds: 5, heat: 5}``."""

    modality: Literal["image", "text", "audio"] = Field(
        "image", description="modality whose clients train first, without the others"
    )
    rounds: PositiveInt = Field(5, description="rounds with this modality only")
    draw: Literal["modality", "union"] = Field(
        "modality",
        description="from whom cohorts of these rounds are drawn: the modality's clients, or all, of whom the others "
        "are sent home (union, Algorithm 1); a cohort without the modality is drawn again",
    )
    heat: NonNegativeInt = Field(
        0, description="further rounds in which the other clients train their private part only (heat distribution)"
    )


class FedColaMat(Method):
    """Shared and private parts, modality compensation, balance, warm-up: see docs/concepts/methods/fedcola.md."""

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
    paper = "MCFL 2023"
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
        first, *others = ((m, self._shared_places(m)) for m in self.single)
        if not first[1]:
            raise MethodError(f"share: {self.options.share} matches no layers in the blocks of the {first[0]} tower")
        for modality, places in others:
            sides = {first[0]: first[1], modality: places}
            different = {k for k in first[1].keys() | places.keys() if len({_shape(p, k) for p in sides.values()}) > 1}
            if different:
                where = {key: next(p[key] for p in sides.values() if key in p) for key in different}
                key = min(different, key=lambda key: where[key].name.split(".", 1)[1])
                part = f"{key.split('.')[1]} of " if where[key].rows else ""
                shapes = " and ".join(f"{_shape(p, key) or 'absent'} in {m}" for m, p in sides.items())
                raise MethodError(
                    f"shared parameters need the same shape in all modalities, but "
                    f"{part}{where[key].name.split('.', 1)[1]} is {shapes}; "
                    "give the towers blocks of the same kind, width and number, or set share: none"
                )

    def _shared_places(self, modality: str) -> dict[Key, KeyRows]:
        """Where the shared parameters of a modality's blocks are, by key."""
        stack = self.stacks[modality]
        return {key: stack.places[key] for n, keys in stack.keys.items() if self.is_shared(n) for key in keys}

    @cached_property
    def stacks(self) -> dict[str, Stack]:
        """The blocks of each modality's tower."""
        return {modality: Stack(kind, next(iter(kind.model["towers"]))) for modality, kind in self.single.items()}

    @cached_property
    def _of_tower(self) -> dict[str, Stack]:
        return {stack.tower: stack for stack in self.stacks.values()}

    def is_shared(self, name: str) -> bool:
        """Whether a parameter is shared by all modalities; embeddings, final norms and heads never are.

        Nor are norms that not all towers have at the same place of their blocks.
        """
        tower, part = (*name.split("."), "")[:2]
        if part != "blocks" or self.options.share == "none" or tower not in self._of_tower:
            return False
        stack, share = self._of_tower[tower], self.options.share
        scope = stack.scope(name)
        if share == "all":
            return scope != "norm" or all(stack.keys[name][0] in other.places for other in self.stacks.values())
        return scope == SCOPES["attention" if share in SOURCES else share]

    def initial(self, seed: int) -> ServerState:
        """Initial models with equal blocks, or equal shared parameters; pre-trained weights override random ones."""
        tensors = dict(super().initial(seed).tensors)
        order = sorted(self.single.items(), key=lambda item: item[0] not in item[1].weights)
        model = order[0][0]
        for modality, other in order[1:]:
            common = self.options.init == "common" and modality not in other.weights
            for name, shape in self.stacks[modality].shapes.items():
                if common or self.is_shared(name):
                    twin = self.stacks[model].value(self.stacks[modality].keys[name], tensors)
                    if twin is not None and tuple(twin.shape) == shape:
                        tensors[f"{other.name}/{name}"] = twin
        return ServerState.from_tensors(tensors)

    # client -----------------------------------------------------------------------------------------------------

    def participates(self, kind: str, round: int) -> bool:
        """True for clients of one modality; in warm-up only for those of the warm-up modality."""
        modalities, warmup = self.setting.kinds[kind].modalities, self.options.warmup
        if len(modalities) > 1:
            return False
        return warmup is None or round > warmup.rounds or modalities == (warmup.modality,)

    def is_drawn(self, kind: str, round: int) -> bool:
        """As ``participates``; with ``draw: union`` clients of one modality are drawn in warm-up, too."""
        warmup = self.options.warmup
        if warmup is None or warmup.draw == "modality":
            return self.participates(kind, round)
        return len(self.setting.kinds[kind].modalities) == 1

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work; in heat distribution the shared part of the other modalities is frozen, but still sent.

        This damps the shared update, as in the public code.
        """
        work, warmup = super().work(kind, round), self.options.warmup
        if warmup is None or not warmup.rounds < round <= warmup.rounds + warmup.heat:
            return work
        if self.setting.kinds[kind].modalities == (warmup.modality,):
            return work
        return replace(work, trainable=tuple(n for n in work.trainable if not self.is_shared(n)))

    # server -----------------------------------------------------------------------------------------------------

    def mix(self, address: Address, cohort: Cohort) -> Mapping[Source, float]:
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
        shared = self.is_shared(name)
        if shared and options.balance == "mean":
            scale = {m: largest / n for m, n in present.items()}
        found: list[Source] = [address]
        if shared:
            source = SOURCES.get(options.share)
            stacks = (self.stacks[m] for m in ((source,) if source else self.single))
            found = sources(self.stacks[modalities[0]], name, stacks)
        weights = dict[Source, float]()
        for each in found:
            owner = address_of(each).split("/", 1)[0]
            modality = self.setting.kinds[owner].modalities[0]
            if modality in present and (n := cohort.by_address.get(address_of(each), 0.0)):
                weights[each] = scale[modality] * n
        if not options.compensation:
            return shares(weights)
        total = sum(scale[m] * n for m, n in present.items())
        return {b: n / total for b, n in weights.items()} if total else {}

    streams = True

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Shared and private parameters in one coefficient table."""
        return state.with_tensors(self.combine(state, updates, self.mix))


def _shape(places: Mapping[Key, KeyRows], key: Key) -> tuple[int, ...] | None:
    return places[key].shape if key in places else None
