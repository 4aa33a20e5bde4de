"""Checks of the server's next state, after an aggregation or a work of the server."""

from __future__ import annotations

from edgefl.commands.check import rules
from edgefl.commands.check.federation import TinyFederation
from edgefl.commands.check.findings import Place
from edgefl.commands.check.tensors import same
from edgefl.methods import ServerState


def check_next_state(
    federation: TinyFederation,
    place: Place,
    where: str,
    old: ServerState,
    new: ServerState,
    rule: str = rules.PLACES,
) -> None:
    """Check the new state against the old one; failures without a rule of their own are reported under ``rule``."""
    expect_none = federation.findings.expect_none
    lost = old.tensors.keys() - new.tensors.keys()
    expect_none(rule, where, lost, "{} is gone")
    added = {address for address in new.tensors.keys() - old.tensors.keys() if not address.startswith("table/")}
    expect_none(rule, where, added, "{} is new; addresses that are added later must begin with table/")
    unversioned = new.tensors.keys() ^ new.versions.keys()
    expect_none(rules.VERSIONS, where, unversioned, "{} has no version")
    changed, reshaped = set[str](), set[str]()
    for address, value in new.tensors.items():
        before = old.tensors.get(address)
        if before is None or before is value:
            continue
        if (before.shape, before.dtype) != (value.shape, value.dtype):
            reshaped.add(f"{address} ({value.dtype} {tuple(value.shape)} for {before.dtype} {tuple(before.shape)})")
        if not same(before, value):
            changed.add(address)
    expect_none(rule, where, reshaped, "{} has another shape or precision than before")
    stale = {address for address in changed if new.versions.get(address, 0) <= old.versions.get(address, 0)}
    expect_none(rules.VERSIONS, where, stale, "{} changed without a new version; use state.changed()")
    infinite = {
        address
        for address in changed
        if new.tensors[address].is_floating_point() and not new.tensors[address].isfinite().all()
    }
    expect_none(rule, where, infinite, "{} isn't finite")
    kinds = federation.setup.clients.kinds
    idle = {
        address
        for address in changed
        if _scheduled(address, kinds) and not place.stage.active(address.split("/", 1)[1])
    }
    expect_none(rules.INACTIVE, where, idle, "{} changed")


def _scheduled(address: str, kinds: tuple[str, ...]) -> bool:
    """Whether an address is a parameter of a client kind's model, which the schedule restricts."""
    return not address.startswith("table/") and address.split("/", 1)[0] in kinds
