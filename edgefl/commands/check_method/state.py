"""Checks of the server's next state, after an aggregation or a work of the server."""

from __future__ import annotations

from edgefl.commands.check_method import rules
from edgefl.commands.check_method.federation import TinyFederation
from edgefl.commands.check_method.findings import Place
from edgefl.commands.check_method.tensors import same
from edgefl.methods import ServerState


def check_next_state(
    federation: TinyFederation,
    place: Place,
    where: str,
    old: ServerState,
    new: ServerState,
    rule: str = rules.PLACES,
) -> None:
    """Check what the new state must keep of the old one; what breaks no rule of its own breaks ``rule``."""
    none = federation.findings.expect_none
    lost = old.tensors.keys() - new.tensors.keys()
    none(rule, where, lost, "{} is gone")
    more = {a for a in new.tensors.keys() - old.tensors.keys() if not a.startswith("table/")}
    none(rule, where, more, "{} is new; a later address begins with table/")
    unversioned = new.tensors.keys() ^ new.versions.keys()
    none(rules.VERSIONS, where, unversioned, "{} has no version")
    moved, other = set[str](), set[str]()
    for address, value in new.tensors.items():
        before = old.tensors.get(address)
        if before is None or before is value:
            continue
        if (before.shape, before.dtype) != (value.shape, value.dtype):
            other.add(f"{address} ({value.dtype} {tuple(value.shape)} for {before.dtype} {tuple(before.shape)})")
        if not same(before, value):
            moved.add(address)
    none(rule, where, other, "{} is another tensor than before")
    stale = {a for a in moved if new.versions.get(a, 0) <= old.versions.get(a, 0)}
    none(rules.VERSIONS, where, stale, "{} changed without; use state.changed()")
    infinite = {a for a in moved if new.tensors[a].is_floating_point() and not new.tensors[a].isfinite().all()}
    none(rule, where, infinite, "{} isn't finite")
    kinds = federation.setup.clients.kinds
    idle = {a for a in moved if _scheduled(a, kinds) and not place.stage.active(a.split("/", 1)[1])}
    none(rules.INACTIVE, where, idle, "{} changed")


def _scheduled(address: str, kinds: tuple[str, ...]) -> bool:
    """Whether an address is a parameter of a client kind's model, and so under the schedule."""
    return not address.startswith("table/") and address.split("/", 1)[0] in kinds
