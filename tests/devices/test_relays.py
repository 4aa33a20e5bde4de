"""Relays: which clients are behind them, which are lost, and the scenarios that can't have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edgefl.devices import Fleet, FleetOptions, Relays, load_link
from edgefl.devices.options import RelayOptions
from edgefl.errors import DeviceError, ScenarioError
from edgefl.scenario import load
from edgefl.setup.compose import compose


def drawn(relays: Any, clients: int = 1000, seed: int = 1) -> Relays:
    options = FleetOptions.model_validate({"relays": relays})
    relays = Fleet.draw(options, clients, seed).relays
    assert relays is not None
    return relays


@given(st.integers(1, 300), st.integers(0, 700), st.integers(0, 5))
def test_clients_are_spread_evenly(count: int, more: int, seed: int) -> None:
    relays = drawn(count, count + more, seed)
    members = np.bincount(relays.of, minlength=count)
    assert len(members) == count and members.max() - members.min() <= 1 and members.sum() == count + more
    assert np.array_equal(relays.of, drawn(count, count + more, seed).of)


def test_a_bare_number_is_the_count_and_the_line_is_fibre() -> None:
    short, long = (FleetOptions.model_validate({"relays": given}) for given in (3, {"count": 3, "link": "fibre"}))
    assert short == long and short.relays == RelayOptions(count=3)
    relays = drawn(3)
    assert (relays.link, relays.failures) == (load_link("fibre"), 0.0)
    own = drawn({"count": 3, "link": {"download": "1 Gbit/s", "latency": "5 ms"}}).link
    assert (own.download_goodput, own.upload_goodput, own.latency_seconds, own.jitter) == (1e9, float("inf"), 5e-3, 0)
    assert not np.array_equal(drawn(3).of, drawn(3, seed=2).of)


def test_who_is_lost_depends_on_the_relay_and_the_dispatch_alone() -> None:
    relays = drawn({"count": 1000, "failures": "20%"}, 1000)
    everyone = np.arange(1000)
    lost = np.array([relays.lost_mask(7, number, everyone) for number in range(1, 21)])
    assert abs(lost.mean() - 0.2) < 0.01 and lost.mean(1).std() > 0
    some = everyone[::7]
    assert np.array_equal(relays.lost_mask(7, 3, some), lost[2][some])
    factors = relays.jitter(7, 3, everyone)
    assert np.array_equal(relays.jitter(7, 3, some), factors[:, some])
    assert abs(np.log(factors).std() - relays.link.jitter) < 0.01 and abs(np.log(factors).mean()) < 0.01
    assert not drawn(1000).lost_mask(7, 3, everyone).any()


def test_relays_change_no_other_draw() -> None:
    fields = {"devices": {"phone-mid": 0.5, "phone-entry": 0.5}, "links": {"lte": 0.5, "wifi-5": 0.5},
              "budgets": {"memory": "1..8 MiB"}}  # fmt: skip
    plain, behind = (
        Fleet.draw(FleetOptions.model_validate({**fields, **more}), 100, 3) for more in ({}, {"relays": 9})
    )
    assert np.array_equal(plain.device_index, behind.device_index)
    assert np.array_equal(plain.link_index, behind.link_index)
    assert all(np.array_equal(plain.budgets[name], behind.budgets[name]) for name in plain.budgets)


def test_more_relays_than_clients() -> None:
    with pytest.raises(DeviceError, match=r"fleet.relays: 5 relays, but there are 4 clients"):
        drawn(5, 4)


TEXT = """\
edgefl: 1
data: {source: glyphs, clients: {image: 3, text: 2, image-text: 2}, samples: 40, public: 24}
model: {image: {blocks: 2, width: 16, heads: 2}, text: {blocks: 2, width: 16, heads: 2}}
fleet:
  links: wifi-5
  relays: RELAYS
MORE
"""


@pytest.mark.parametrize(
    ("relays", "more", "line", "message"),
    [
        ("0", "", 6, "fleet.relays: must be at least 1, not 0"),
        ("{count: 0}", "", 6, "fleet.relays.count: must be at least 1, not 0"),
        ("8", "", 6, "fleet.relays: 8 relays, but there are 7 clients: write 7 or fewer"),
        ("many", "", 6, "fleet.relays: 'many' is neither a number of relays (1000) nor a mapping"),
        ("{link: fibre}", "", 6, "fleet.relays.count: is missing"),
        ("{count: 2, link: fibr}", "", 6, "fleet.relays.link: unknown link 'fibr'; did you mean 'fibre'?"),
        ("{count: 2, link: {upload: 0}}", "", 6, "fleet.relays.link.upload: a rate must be more than 0 bit/s"),
        ("{count: 2, failures: 120%}", "", 6, "fleet.relays.failures: '120%' is too large"),
        ("2", "round: {policy: buffered}", 7, "round.policy: a relay adds up the updates of a round that waits for"),
        ("2", "aggregation: {rule: krum}", 7, "aggregation.rule: krum compares single updates, and a relay sends"),
        ("2", "  server_link: {upload: 1 Mbit/s}", 7, "fleet.server_link: the server's line isn't shared by relays"),
        ("2", "method: qfedavg", 6, "fleet.relays: qfedavg reads each update, and a relay sends the sum of its"),
        ("2", "method: creamfl", 6, "fleet.relays: creamfl reads the tables of each update ("),
        (
            "2", "schedule: {name: flexlora, ranks: [8, 4]}\nadapter: lora", 6,
            "fleet.relays: flexlora multiplies the factors of each update, and",
        ),
    ],
)  # fmt: skip
def test_a_scenario_that_cannot_have_relays_is_told_where(
    tmp_path: Path, relays: str, more: str, line: int, message: str
) -> None:
    file = tmp_path / "it.yaml"
    file.write_text(TEXT.replace("RELAYS", relays).replace("MORE", more))
    with pytest.raises(ScenarioError) as raised:
        compose(load(file))
    assert raised.value.line == line and message in str(raised.value)


def test_a_fleet_of_the_library_with_a_line_of_its_own_has_to_leave_it(tiny: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(ScenarioError, match="write server_link: null"):
        load(tiny(fleet={"like": "campus", "relays": 2}))
    fleet = load(tiny(fleet={"like": "campus", "relays": 2, "server_link": None})).fleet
    assert fleet.relays == RelayOptions(count=2) and fleet.server_link is None


def test_fields_beside_a_bare_number() -> None:
    document = yaml.safe_load(TEXT.replace("RELAYS", "2").replace("MORE", ""))
    scenario = load(document, ["fleet.relays.failures=5%"])
    assert scenario.fleet.relays == RelayOptions(count=2, failures=0.05)
    assert load(scenario.to_data()) == scenario
    assert load(document, ["fleet.relays=null"]).fleet.relays is None
