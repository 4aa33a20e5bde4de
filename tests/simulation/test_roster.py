"""The roster: its verdicts are the gate's, client by client from scratch, however they came to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from edgefl_games import Games, changed, granted
from edgefl_toys import declared
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.devices.budgets import BUDGETS
from edgefl.planning.eligibility import gate
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.planning.versions import ClientVersions, stale
from edgefl.schedules import Schedule, Stage
from edgefl.simulation import Roster

KINDS = {"image": 5, "text": 4}


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


class Either(Schedule):
    """A client trains the second half of the blocks, or the first where that is too much for it."""

    def candidates(self, round: int) -> tuple[Stage, ...]:
        """The stage of the round, then the other."""
        return self.stages[::-1]


def sections(games: Games) -> dict[str, Any]:
    data = {**games.tiny()["data"], "clients": KINDS, "samples": 16}
    return declared({"data": data, "schedule": {"name": "layerwise", "stages": 2, "rounds": 8}})


@pytest.fixture(scope="module")
def setup(games: Games) -> Setup:
    """Two stages; devices, links and budgets of bytes and seconds that some keep only with fresh copies."""
    fleet = {"devices": {"raspberry-pi-4-4gb": "50%", "raspberry-pi-5-8gb": "50%"}}
    return changed(games.setup(**sections(games)), fleet=fleet)


def budgeted(setup: Setup, planner: Planner, seed: int) -> Setup:
    """Budgets between what the cheapest and the costliest client needs, drawn client by client."""
    roster = Roster(planner, ClientVersions(len(setup.clients.client_kind)))
    roster.judge(1, setup.method.initial(0).versions)
    draw, budgets = np.random.default_rng(seed), {}
    for name in BUDGETS:
        costs = roster.of_cells(name)
        # mostly enough; some can do neither stage, some only one, some only with fresh copies
        budgets[name] = draw.uniform(costs.min() * 0.8, costs.max() * 2.5, len(setup.clients.client_kind))
    return replace(setup, fleet=granted(setup.fleet, **budgets))


def by_hand(
    planner: Planner, client_versions: ClientVersions, round: int, current: Any
) -> dict[int, tuple[int, bool, int, float]]:
    """Stage, eligibility, binding budget and bytes of each client, one after the other."""
    setup, found = planner.setup, {}
    for client in range(len(setup.clients.client_kind)):
        kind = setup.kind_of(client)
        if not setup.method.participates(kind, round):
            continue
        nearest = None
        for stage in setup.schedule.candidates(round):
            work, _ = planner.work(kind, round, stage)
            old = stale(work, stage, client_versions.versions_of(client), current)
            group, fleet = int(setup.clients.client_group[client]), setup.fleet
            device, link = int(fleet.device_index[client]), int(fleet.link_index[client])
            costs = planner.plan(group, device, link, round, stage, old).amounts
            allowed = {name: values[client : client + 1] for name, values in setup.fleet.budgets.items()}
            if setup.round.deadline is not None:
                allowed["seconds"] = np.minimum(allowed["seconds"], setup.round.deadline)
            verdict = gate({name: np.array([costs[name]]) for name in BUDGETS}, allowed)
            # refused by what comes nearest: of equally near ones by the later stage
            near = min(1 - costs[name] / allowed[name][0] for name in BUDGETS), stage.index
            if not verdict.eligible[0] and nearest is not None and near < nearest:
                continue
            nearest = near
            found[client] = stage.index, bool(verdict.eligible[0]), int(verdict.binding[0]), costs["bytes"]
            if verdict.eligible[0]:
                break
    return found


def told(roster: Roster) -> dict[int, tuple[int, bool, int, float]]:
    """The same of a roster."""
    return {
        c: (
            int(roster.stage[c]),
            bool(roster.eligible[c]),
            int(roster.binding[c]),
            roster.plans([c])[0].amounts["bytes"],
        )
        for c in np.flatnonzero(roster.cell >= 0).tolist()
    }


@pytest.mark.parametrize("either", [pytest.param(False, marks=pytest.mark.slow), True])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 99), data=st.data())
def test_verdicts_are_those_of_a_roster_that_begins_anew(
    games: Games, setup: Setup, either: bool, seed: int, data: st.DataObject
) -> None:
    """After any sequence of rounds: who took part, what was delivered, what the server changed."""
    if either:
        setup = replace(setup, schedule=Either(setup.schedule.stages))
    planner = Planner(setup, games.predictor)
    setup = budgeted(setup, planner, seed)
    planner = Planner(setup, games.predictor)
    clients = len(setup.clients.client_kind)
    client_versions, state = ClientVersions(clients), setup.method.initial(setup.seed)
    roster = Roster(planner, client_versions)
    before: dict[int, tuple[int, bool, int, float]] = {}
    for round in sorted(data.draw(st.sets(st.integers(1, 8), min_size=2, max_size=5))):
        new = roster.judge(round, state.versions)
        found = told(roster)
        assert found == by_hand(planner, client_versions, round, state.versions)
        assert new.tolist() == [c for c, verdict in found.items() if verdict[:3] != before.get(c, (0, False, -1))[:3]]
        for kind in setup.clients.kinds:
            mine = [c for c in setup.of_kind(kind).tolist() if found[c][1]]
            assert roster.able(kind).tolist() == mine
            assert roster.able_samples(kind) == sum(int(setup.clients.client_samples[c]) for c in mine)
        anew = Roster(Planner(setup, games.predictor), client_versions)
        of, states = client_versions.to_data()
        anew.client_versions = ClientVersions(clients)
        anew.client_versions.load_data(of, states)
        anew.judge(round, state.versions)
        assert told(anew) == found
        before = found
        # some take part, some of these twice, and what they send up changes
        for chosen in data.draw(st.lists(st.sets(st.integers(0, clients - 1), min_size=1), max_size=2)):
            changes: dict[str, Any] = {}
            for client in sorted(chosen):
                plan = roster.plans([client])[0]
                client_versions.record_download(client, plan.down, state.versions)
                changes |= {i.source: state.tensors[i.source] for p in plan.form.up for i in p.items}
            state = state.with_tensors(changes)
            if data.draw(st.booleans()):
                roster.judge(round, state.versions)
                before = told(roster)


def test_only_who_may_have_changed_is_judged_again(games: Games, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    planner, client_versions = Planner(setup, games.predictor), ClientVersions(len(setup.clients.client_kind))
    roster, state = Roster(planner, client_versions), setup.method.initial(setup.seed)
    seen: list[list[int]] = []
    judge = Roster._judge
    monkeypatch.setattr(Roster, "_judge", lambda self, who, *rest: seen.append(who.tolist()) or judge(self, who, *rest))
    assert len(roster.judge(5, state.versions)) == 9 and seen.pop() == list(range(9))
    assert len(roster.judge(6, state.versions)) == 0 and seen == []
    able = roster.able("image")
    client_versions.record_download(np.array([2, 7]), roster.plans([2])[0].down, dict.fromkeys(state.versions, 1))
    assert len(roster.judge(7, state.versions)) == 0 and seen.pop() == [2, 7]
    assert roster.able("image") is able  # nobody's verdict is new: what selections made of it stays


def test_a_fleet_of_one_holds_what_it_was_sent(games: Games) -> None:
    """Its only client has the blocks that stage 1 left: nothing frozen travels to it in stage 2."""
    given = sections(games)
    setup = games.setup(**{**given, "data": {**given["data"], "clients": {"image": 1}}})
    planner, client_versions, state = (
        Planner(setup, games.predictor),
        ClientVersions(1),
        setup.method.initial(setup.seed),
    )
    roster = Roster(planner, client_versions)
    roster.judge(1, state.versions)
    sent = roster.plans([0])[0]
    state = state.with_tensors({i.source: state.tensors[i.source] for p in sent.form.up for i in p.items})
    roster.judge(5, state.versions)
    assert roster.plans([0])[0].old
    client_versions.record_download(0, sent.down, state.versions)
    roster.judge(5, state.versions)
    assert roster.plans([0])[0].old == () and told(roster) == by_hand(planner, client_versions, 5, state.versions)
