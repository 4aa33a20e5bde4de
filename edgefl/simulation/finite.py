"""Whether the server's own state is still finite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isfinite

from edgefl.methods import ServerState
from edgefl.work import Description
from edgefl.work.packed import finite


class FiniteCheck:
    """Finds the tensors of a server's state that aren't finite; each version of a tensor is read once."""

    def __init__(self) -> None:
        self._checked: dict[str, int] = {}
        self._bad: dict[str, int] = {}

    def bad(self, state: ServerState) -> list[str]:
        """The addresses whose tensors have a NaN or an infinity, in the state's order."""
        versions = {address: state.versions.get(address, 0) for address in state.tensors}
        new = {a: state.tensors[a] for a, version in versions.items() if self._checked.get(a) != version}
        if not self._bad and finite({"": new}):
            self._checked |= {address: versions[address] for address in new}
            return []
        for address, tensor in new.items():
            self._checked[address] = version = versions[address]
            self._bad.pop(address, None)
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                self._bad[address] = version
        return [address for address in state.tensors if address in self._bad] if self._bad else []


def finite_metrics(work: Description, metrics: Mapping[str, float], bad: Collection[str]) -> dict[str, float | None]:
    """The metrics of an evaluation, with None for those that aren't finite.

    All are None if the work reads one of the ``bad`` addresses, whose tensors aren't finite.
    """
    spoilt = any(item.source in bad for payload in work.down for item in payload.items)
    return {name: value if isfinite(value) and not spoilt else None for name, value in metrics.items()}
