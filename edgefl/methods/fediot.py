"""FedIoT: parameters of a modality are averaged over client kinds, and pairs have 100 times the weight.

The baseline of the FedCola and PmcmFL papers after Zhao, Barnaghi and Haddadi (2022): clients train as in FedAvg, the
server gives those with several modalities more weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, PositiveFloat

from edgefl.errors import MethodError
from edgefl.methods.aggregation import Cohort
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Setting
from edgefl.methods.state import ServerState
from edgefl.work import Address
from edgefl.work.update import Update

LAYERS = {"attention": ("attn", "attention"), "mlp": ("mlp", "ffn")}
"""Names of a block's layers in each scope."""


class FedIoT(Method):
    """Averages parameters over client kinds, with more weight for pairs.

    docs/concepts/methods/averaging.md describes it.
    """

    class Options(Method.Options):
        """``method: {name: fediot, pair_weight: 100, share: blocks}``."""

        name: Literal["fediot"] = "fediot"
        pair_weight: PositiveFloat = Field(
            100.0, description="weight of a sample with two modalities; a sample with one has weight 1"
        )
        share: Literal["blocks", "attention", "mlp", "all", "none"] | None = Field(
            None,
            description="parameters of a modality that are averaged over client kinds: its blocks, their attention "
            "or MLP, or everything that several kinds' models have; null: blocks, with the multiway model all",
        )

    summary = "blocks shared over client kinds, pairs weighted 100 (FedIoT)"
    paper = "Zhao, Barnaghi and Haddadi 2022"
    options: FedIoT.Options

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        multiway = any(kind.model["name"] == "multiway" for kind in setting.kinds.values())
        self.share = options.share or ("all" if multiway else "blocks")
        self.holders = self._holders()
        for name, (first, *others) in self.holders.items():
            for other in others:
                a, b = (setting.kinds[kind].parameters()[name].shape for kind in (first, other))
                if a != b:
                    raise MethodError(
                        f"fediot averages {name} over client kinds, but it is {a} in {first} and {b} in {other}; "
                        "give their models the same width and number of classes, or set method.share: none"
                    )
        shared_towers = {name.split(".")[0] for name in self.holders}
        for tower, kinds in self._towers().items():
            if self.share != "none" and len(kinds) > 1 and tower not in shared_towers:
                raise MethodError(
                    f"share: {self.share} matches no layers in the {tower} tower, which {' and '.join(kinds)} "
                    "clients have in common; set method.share: all, or none"
                )

    def _holders(self) -> dict[str, list[str]]:
        """The kinds that have each shared parameter, by its name in their models."""
        holders: dict[str, list[str]] = {}
        for kind in self.setting.kinds.values():
            for name in filter(self.is_shared, kind.parameters()):
                holders.setdefault(name, []).append(kind.name)
        return holders

    def _towers(self) -> dict[str, list[str]]:
        """The kinds that have each tower."""
        holders: dict[str, list[str]] = {}
        for kind in self.setting.kinds.values():
            for tower in kind.model.get("towers", ("multiway",)):
                holders.setdefault(tower, []).append(kind.name)
        return holders

    def is_shared(self, name: str) -> bool:
        """Whether a parameter is averaged over client kinds."""
        if self.share in ("all", "none"):
            return self.share == "all"
        _, part, _, layer, *_ = (*name.split("."), "", "", "")
        return part == "blocks" and (self.share == "blocks" or layer in LAYERS[self.share])

    # server -----------------------------------------------------------------------------------------------------

    def update_weight(self, update: Update) -> float:
        """``pair_weight n_pair + n_single``, from a client's samples of pairs and of single modalities.

        The two are shares of the client's samples where the round policy weighs clients equally.
        """
        pairs = sum(n for pattern, n in update.samples.items() if "-" in pattern)
        counts = self.options.pair_weight * pairs + update.total - pairs
        return counts / max(update.total, 1) if update.equal else counts

    def mix(self, address: Address, cohort: Cohort) -> Mapping[Address, float]:
        """Shares of the kinds that sent the parameter, by ``update_weight``."""
        name = address.split("/", 1)[1]
        if name not in self.holders:
            return {address: 1.0}
        weights = {b: n for kind in self.holders[name] if (n := cohort.by_address.get(b := f"{kind}/{name}", 0.0))}
        total = sum(weights.values())
        return {b: n / total for b, n in weights.items()}

    streams = True

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Shared and own parameters in one coefficient table."""
        return state.with_tensors(self.combine(state, updates, self.mix))
