"""Checks of aggregation: that it changes nothing, remembers nothing, and doesn't depend on an order."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.commands.check_method import rules
from edgefl.commands.check_method.federation import TinyFederation
from edgefl.commands.check_method.findings import Place
from edgefl.commands.check_method.state import check_next_state
from edgefl.commands.check_method.tensors import copies, differing
from edgefl.methods import ServerState, Update


def check_aggregation(
    federation: TinyFederation, place: Place, state: ServerState, updates: Sequence[Update]
) -> ServerState:
    """The state that the method makes of these updates, compared with what it makes of them in other ways."""
    none, where = federation.findings.expect_none, place.at("aggregate()")
    tensors, versions = copies(state.tensors), dict(state.versions)
    sent = [copies(dict(update.sent())) for update in updates]
    new = federation.method.aggregate(state, updates)
    none(rules.PURE, where, differing(tensors, state.tensors), "{} was changed in place")
    found = "the versions of the state given were changed"
    federation.findings.expect(rules.PURE, where, versions == dict(state.versions), found)
    touched = [n for update, old in zip(updates, sent, strict=True) for n in differing(old, dict(update.sent()))]
    none(rules.PURE, where, touched, "{} of an update was changed")
    again = federation.method.aggregate(state, updates).tensors
    none(rules.PURE, where, differing(new.tensors, again), "{} differs when asked again")
    fresh = federation.new_method().aggregate(state, updates).tensors
    fault = "{} differs for a method made anew: what a round leaves behind belongs in the state"
    none(rules.PURE, where, differing(new.tensors, fresh), fault)
    reverse = federation.new_method().aggregate(state, list(reversed(updates))).tensors
    none(rules.ORDER, where, differing(fresh, reverse), "{} differs: sort the updates by client")
    check_next_state(federation, place, where, state, new)
    for update in updates:
        with federation.findings.attempt(rules.SPARSE, where):
            alone = federation.method.aggregate(state, [update])
            one = f"{where} of one {update.kind} client alone"
            check_next_state(federation, place, one, state, alone, rules.SPARSE)
    return new
