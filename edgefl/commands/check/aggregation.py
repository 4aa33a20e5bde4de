"""Checks of aggregation: it changes no argument, keeps no state, and doesn't depend on the order of updates."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.commands.check import rules
from edgefl.commands.check.federation import TinyFederation
from edgefl.commands.check.findings import Place
from edgefl.commands.check.state import check_next_state
from edgefl.commands.check.tensors import copies, differing
from edgefl.commands.check.untrained import check_untrained_aggregation
from edgefl.methods import ServerState, Update


def check_aggregation(
    federation: TinyFederation, place: Place, state: ServerState, updates: Sequence[Update]
) -> ServerState:
    """The aggregated state, compared with that of a second call, a new method, reversed and single updates."""
    expect_none, where = federation.findings.expect_none, place.at("aggregate()")
    tensors, versions = copies(state.tensors), dict(state.versions)
    sent = [copies(dict(update.sent())) for update in updates]
    new = federation.method.aggregate(state, updates)
    expect_none(rules.PURE, where, differing(tensors, state.tensors), "{} was changed in place")
    fault = "the versions of the given state were changed"
    federation.findings.expect(rules.PURE, where, versions == dict(state.versions), fault)
    changed = [n for update, old in zip(updates, sent, strict=True) for n in differing(old, dict(update.sent()))]
    expect_none(rules.PURE, where, changed, "{} of an update was changed")
    repeated = federation.method.aggregate(state, updates).tensors
    expect_none(rules.PURE, where, differing(new.tensors, repeated), "{} differs in a second call")
    fresh_state = federation.new_method().aggregate(state, updates)
    fresh = fresh_state.tensors
    fault = "{} differs for a new instance of the method: what a round leaves behind belongs in the state"
    expect_none(rules.PURE, where, differing(new.tensors, fresh), fault)
    reverse = federation.new_method().aggregate(state, list(reversed(updates))).tensors
    expect_none(rules.ORDER, where, differing(fresh, reverse), "{} differs: sort the updates by client")
    check_next_state(federation, place, where, state, new)
    check_untrained_aggregation(federation, where, state, updates, fresh_state)
    for update in updates:
        with federation.findings.attempt(rules.SPARSE, where):
            alone = federation.method.aggregate(state, [update])
            client_where = f"{where} of one {update.kind} client alone"
            check_next_state(federation, place, client_where, state, alone, rules.SPARSE)
    return new
