"""What travels: versions held against versions current."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from edgefl_toys import make_work
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.planning.versions import ClientVersions, final_blocks, stale, travelling
from edgefl.schedules import Layerwise
from edgefl.work import Item, Payload

SCHEDULE = Layerwise(Layerwise.Options(stages=2, rounds=4), {"image": 2})
FIRST, SECOND = SCHEDULE.stages
FULL = make_work()
ADDRESSES = [item.source for item in FULL.down[0].items]
FROZEN = [a for a in ADDRESSES if ".blocks.0." in a or ".embedding." in a]


def versions(**changed: int) -> dict[str, int]:
    return {a: next((v for k, v in changed.items() if k in a), 0) for a in ADDRESSES}


def test_version_0_is_preinstalled() -> None:
    work = SECOND.restrict_work(FULL)
    assert stale(work, SECOND, {}, versions()) == ()
    assert {i.source for p in travelling(work, SECOND, ()) for i in p.items} == set(ADDRESSES) - set(FROZEN)


def test_frozen_parts_travel_to_an_old_copy_only() -> None:
    work, current = SECOND.restrict_work(FULL), versions(blocks=3, embedding=2)
    assert list(stale(work, SECOND, {}, current)) == FROZEN
    (down,) = travelling(work, SECOND, stale(work, SECOND, {}, current))
    assert [i.source for i in down.items] == ADDRESSES
    client_versions = ClientVersions(6)
    client_versions.record_download(4, (down,), current)
    assert stale(work, SECOND, client_versions.versions_of(4), current) == ()
    assert list(stale(work, SECOND, client_versions.versions_of(5), current)) == FROZEN
    newer = {**current, FROZEN[0]: 9}
    assert stale(work, SECOND, client_versions.versions_of(4), newer) == (FROZEN[0],)


def test_active_parts_and_tables_travel_always() -> None:
    table = Payload("prototypes", (Item("prototypes", (5, 16), "float32", "table/prototypes"),))
    work = FIRST.restrict_work(replace(FULL, down=(*FULL.down, table)))
    current = {**versions(), "table/prototypes": 0}
    client_versions = ClientVersions(6)
    client_versions.record_download(0, work.down, current)
    assert stale(work, FIRST, client_versions.versions_of(0), current) == ()
    assert travelling(work, FIRST, ()) == work.down


def test_what_is_kept_never_travels() -> None:
    work = SECOND.restrict_work(replace(FULL, keep=("image.head.weight", "image.blocks.0.norm1.bias")))
    current = versions(head=5, blocks=5)
    old = stale(work, SECOND, {}, current)
    assert "own/image.blocks.0.norm1.bias" not in old
    names = {i.name for p in travelling(work, SECOND, old) for i in p.items}
    assert "image.head.weight" not in names and "image.head.bias" in names


def test_the_final_blocks_are_a_stages_own() -> None:
    payload = final_blocks(SECOND.restrict_work(FULL), SECOND)
    assert {i.name for i in payload.items} == {a.removeprefix("own/") for a in ADDRESSES if ".blocks.1." in a}


def test_a_ledger_comes_back_from_its_rows() -> None:
    client_versions = ClientVersions(12)
    client_versions.record_download(7, FULL.down, versions(blocks=2))
    client_versions.record_download(11, FULL.down, versions())
    of, states = client_versions.to_data()
    assert set(client_versions.versions_of(7).values()) == {2} and client_versions.versions_of(
        11
    ) == {} == client_versions.versions_of(0)
    again = ClientVersions(12)
    again.load_data(of, states)
    assert [again.versions_of(client) for client in range(12)] == [
        client_versions.versions_of(client) for client in range(12)
    ]
    assert stale(SECOND.restrict_work(FULL), SECOND, again.versions_of(7), versions(blocks=2)) == ()
    # states that nobody holds any more are left behind
    client_versions.record_download(np.arange(12), FULL.down, versions(image=5))
    assert len(client_versions.to_data()[1]) == 1


def test_a_thin_ledger_knows_who_holds_what_is_old() -> None:
    work, client_versions = SECOND.restrict_work(FULL), ClientVersions(9)
    client_versions.record_download(np.arange(6), FULL.down, versions(blocks=1))
    client_versions.record_download(np.arange(4), FULL.down, versions(blocks=2))
    client_versions.record_download(3, FULL.down, versions(blocks=2, embedding=1))
    for current in (versions(blocks=2), versions(blocks=2, embedding=1), versions(image=7)):
        before = [stale(work, SECOND, client_versions.versions_of(client), current) for client in range(9)]
        client_versions.thin(current)
        assert [stale(work, SECOND, client_versions.versions_of(client), current) for client in range(9)] == before
        assert len(client_versions.states) <= 1 + len(
            {tuple(client_versions.versions_of(client)) for client in range(9)}
        )
    assert client_versions.states == [{}] and not client_versions.is_crowded


def test_a_ledger_is_crowded_by_states_and_not_by_clients() -> None:
    client_versions = ClientVersions(1000)
    for version in range(1, 400):
        client_versions.record_download(np.arange(version, 1000), FULL.down, versions(blocks=version))
    assert client_versions.is_crowded and len(client_versions.states) == 400
    client_versions.thin(versions(blocks=399))
    assert not client_versions.is_crowded and len(client_versions.states) == 2


def test_what_was_sent_while_older_was_under_way_stays() -> None:
    client_versions = ClientVersions(2)
    client_versions.record_download(0, FULL.down, versions(blocks=3))
    client_versions.record_download(0, FULL.down, versions(blocks=1, head=4))
    assert {client_versions.versions_of(0)[a] for a in ADDRESSES if ".blocks." in a} == {3}
    assert {client_versions.versions_of(0)[a] for a in ADDRESSES if ".head." in a} == {4}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_ledger_of_arrays_is_one_that_is_told_client_by_client(data: st.DataObject) -> None:
    at_once, one_by_one = ClientVersions(8), ClientVersions(8)
    for _ in range(data.draw(st.integers(1, 6))):
        clients = data.draw(st.lists(st.integers(0, 7), unique=True, min_size=1))
        items = data.draw(st.lists(st.sampled_from(FULL.down[0].items), unique=True, min_size=1, max_size=4))
        current = {item.source: data.draw(st.integers(0, 3)) for item in items}
        payload = Payload("model", tuple(items))
        at_once.record_download(np.array(clients), (payload,), current)
        for client in data.draw(st.permutations(clients)):
            one_by_one.record_download(client, (payload,), current)
        assert at_once.pop_changed_clients().tolist() == one_by_one.pop_changed_clients().tolist()
    assert [at_once.versions_of(c) for c in range(8)] == [one_by_one.versions_of(c) for c in range(8)]
