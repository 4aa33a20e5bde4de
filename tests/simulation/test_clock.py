"""The clock itself; and whole simulations without training, by both clocks: the same tables; what must end, ends."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgefl_games import granted
from edgefl_toys import Memory, declared

import edgefl
from edgefl.cost.predict import Predictor
from edgefl.devices import RelayOptions, Relays, available_memory_bytes
from edgefl.devices.availability import availability_of
from edgefl.devices.availability_options import AvailabilityOptions
from edgefl.devices.battery import Batteries, BatteryOptions
from edgefl.devices.failures import FailureOptions
from edgefl.devices.options import ServerLinkOptions
from edgefl.memo import cache_folder
from edgefl.planning.round_options import RoundOptions
from edgefl.planning.setup import Setup
from edgefl.records.reading import from_data
from edgefl.results.conservation import CheckedFlight, CheckedRound, CheckedVerdict, Ledger, LedgerFacts, Three
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.simulation import Simulation
from edgefl.simulation.clock import CUTS, FLOWS, LAST, PHASES, Clock

Tiny = Callable[..., dict[str, Any]]
PREDICTOR = Predictor(cache_folder() / "costs")
TABLES = ("rounds", "clients", "eligibility")


def test_an_event_has_its_time_where_no_delay_leads_there() -> None:
    clock, then = Clock(initial_time=2.0**-53), 1 + 2.0**-52
    delay = then - clock.now
    assert all(clock.now + d != then for d in (np.nextafter(delay, 0), delay, np.nextafter(delay, 2)))
    times: list[float] = []
    for when in (then, -1.0):  # what would lie in the past happens now
        clock.at(when).callbacks.append(lambda _: times.append(clock.now))
    assert clock.peek() == 2.0**-53
    clock.run()
    assert times == [2.0**-53, then] and clock.peek() == inf


def test_what_happens_at_one_time_happens_in_its_order() -> None:
    clock, happened = Clock(), list[Any]()
    for order, client, name in (
        (LAST, 0, "last"),
        (CUTS, 1, "cut"),
        (FLOWS, 0, "flow"),
        (PHASES, 9, "9"),
        (PHASES, 8, "8"),
    ):
        clock.at(5.0, order, client).callbacks.append(lambda _, name=name: happened.append(name))
    clock.run()
    assert happened == ["8", "9", "flow", "cut", "last"] and clock.now == 5.0


def test_an_error_in_a_process_ends_the_run() -> None:
    clock = Clock()

    def process() -> Iterator[Any]:
        yield clock.at(1.0)
        raise KeyError("lost")

    clock.process(process())  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="lost"):
        clock.run()


def small(tiny: Tiny) -> dict[str, Any]:
    """Seven clients of one kind, without training."""
    sections = declared(tiny())
    return {
        **sections,
        "data": {**sections["data"], "clients": {"image": 7}},
        "model": {"image": {"blocks": 1, "width": 16, "heads": 2}},
        "training": {"mode": "none", "batch": 8},
        "schedule": {"name": "end-to-end", "rounds": 6},
    }


@pytest.fixture(scope="module")
def setup(tiny: Tiny) -> Setup:
    setup = compose(load(small(tiny)))
    # a round of a minute or so, for a fleet to change in
    fleet = setup.fleet
    devices = tuple(replace(d, jitter=0.2, flops_per_second=d.flops_per_second / 1e3) for d in fleet.devices)
    links = tuple(
        replace(one, jitter=0.3, loss=0.1, **{
            f"{way}_bits_per_second": getattr(one, f"{way}_bits_per_second") / 1e3 for way in ("download", "upload")
        })
        for one in fleet.links
    )  # fmt: skip
    return replace(setup, fleet=replace(fleet, devices=devices, links=links))


def changed(setup: Setup, options: dict[str, Any]) -> Setup:
    """With other ``round``, ``failures``, ``battery``, ``availability``, ``server_link`` or fleet fields."""
    options, fleet = dict(options), setup.fleet
    round = RoundOptions(**{"cohort": 1.0, **options.pop("round", {})})
    if "failures" in options:
        fleet = replace(fleet, failures=FailureOptions(**options.pop("failures")))
    if "battery" in options:
        batteries = BatteryOptions(**options.pop("battery"))
        fleet = replace(fleet, battery=Batteries(batteries, fleet.devices, fleet.device_index, setup.seed))
    if "availability" in options:
        told = AvailabilityOptions(**options.pop("availability"))
        fleet = replace(fleet, availability=availability_of(told, len(fleet), setup.seed))
    if "server_link" in options:
        fleet = replace(fleet, server_link=ServerLinkOptions(**options.pop("server_link")))
    if "relays" in options:
        fleet = replace(fleet, relays=Relays.draw(RelayOptions(**options.pop("relays")), len(fleet), setup.seed))
    if "memory" in options:
        fleet = granted(fleet, memory=np.full(len(fleet), options.pop("memory")))
    return replace(setup, round=round, fleet=replace(fleet, **options))


def play(setup: Setup, events: bool = False) -> tuple[Simulation, Memory]:
    journal = Memory()
    simulation = Simulation(setup, None, PREDICTOR, journal, events=events)
    simulation.play()
    return simulation, journal


def usual_seconds(setup: Setup) -> list[float]:
    """Seconds of each client's round without jitter, ascending."""
    _, journal = play(replace(setup, schedule=setup.schedule))
    return sorted(v["costs"]["seconds"] for v in journal.tables["eligibility"])


FAILURES = {
    "before_download": 0.1, "download": 0.1, "training": 0.1, "upload": 0.1, "corrupted": 0.1, "truncated": 0.1,
    "slow_down": {"share": 0.3, "factor": "2..5"},
}  # fmt: skip
LINE = {"download": 1e5, "upload": 25e3}
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "failures": {"failures": FAILURES, "throttling": True},
    "over-selection": {"round": {"cohort": 3, "over_selection": 1.0}, "failures": FAILURES},
    "offline": {"availability": {"markov": {"on": 20.0, "off": 5.0}}},
    "batteries": {"battery": {"capacity": (1.0, 60.0), "charge_watts": 1.0}},
    "everything": {
        "round": {"cohort": 4, "over_selection": 0.5, "quorum": 2, "below_quorum": "skip", "retry": 7.0},
        "failures": FAILURES,
        "availability": {"markov": {"on": 30.0, "off": 5.0}},
        "battery": {"capacity": (20.0, 400.0), "charge_watts": 3.0, "idle": True},
    },
    "out of memory": {"round": {"gate": "everyone"}, "memory": 1000.0},
    "relays": {
        "relays": {"count": 3, "link": {"download": 1e5, "upload": 5e4, "latency": 0.1}, "failures": 0.2},
        "round": {"cohort": 4, "over_selection": 0.5, "quorum": 2, "below_quorum": "skip", "retry": 7.0},
        "failures": FAILURES,
        "availability": {"markov": {"on": 30.0, "off": 5.0}},
        "battery": {"capacity": (20.0, 400.0), "charge_watts": 3.0, "idle": True},
    },
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("deadline", [False, True], ids=["", "deadline"])
def test_both_clocks_write_the_same_tables(setup: Setup, name: str, deadline: bool) -> None:
    options = dict(CHANGES[name])
    if deadline:
        options["round"] = {**options.get("round", {}), "deadline": usual_seconds(setup)[-1] * 1.01}
    (one, at_once), (other, by_events) = play(changed(setup, options)), play(changed(setup, options), events=True)
    for table in TABLES:
        assert at_once.tables.get(table) == by_events.tables.get(table)
    assert (one.run.at, one.run.progress.totals) == (other.run.at, other.run.progress.totals)
    if name != "plain" or deadline:
        assert len(tally(at_once)) > 1 or name == "out of memory"


def tally(journal: Memory) -> Counter[str]:
    return Counter(client["outcome"] for client in journal.tables.get("clients", []))


@pytest.mark.parametrize("throttling", [False, True])
def test_without_jitter_a_flight_costs_what_its_verdict_said(setup: Setup, throttling: bool) -> None:
    fleet = setup.fleet
    devices = tuple(
        replace(d, jitter=0.0, throttle_after_seconds=0.01, throttled_share=0.5) for d in fleet.devices
    )  # fmt: skip
    links = tuple(replace(one, jitter=0.0) for one in fleet.links)
    plain = replace(setup, fleet=replace(fleet, devices=devices, links=links, throttling=throttling))
    _, journal = play(changed(plain, {}))
    costs = {v["client"]: v["costs"] for v in journal.tables["eligibility"]}
    assert len(journal.tables["clients"]) == 42
    for client in journal.tables["clients"]:
        said = costs[client["client"]]
        assert client["virtual_seconds"] == said["seconds"]
        assert client["energy_joules"] == said["joules"]


@pytest.mark.slow(smaller="test_both_clocks_write_the_same_tables")
def test_both_clocks_write_the_same_files(tiny: Tiny, tmp_path: Path) -> None:
    scenario = small(tiny)
    scenario["fleet"] = {"failures": FAILURES, "availability": CHANGES["offline"]["availability"]}
    texts = []
    for clock in ("auto", "events"):
        scenario["executor"] = {"name": "inline", "device": "cpu", "clock": clock}
        folder = edgefl.run(scenario, out=tmp_path / clock).path
        texts.append({f.name: f.read_bytes() for f in folder.glob("*.jsonl") if f.stem in TABLES})
    assert texts[0] == texts[1] and len(texts[0]) == 3


@pytest.mark.parametrize("line", [{}, LINE, {**LINE, "sharing": "fifo"}], ids=["alone", "fair", "fifo"])
@pytest.mark.parametrize("policy", ["synchronous", "asynchronous", "buffered", "semi-synchronous"])
def test_every_policy_conserves(setup: Setup, policy: str, line: dict[str, Any]) -> None:
    """The rules of ``edgefl run --verify``: bytes, seconds, joules, the clock, the server's line, sums."""
    devices = {d.name: d for d in setup.fleet.devices}
    links = {one.name: one for one in setup.fleet.links}

    def watts(device: str, link: str) -> tuple[Three, Three]:
        at, over = devices[device], links[link]
        assert at.processor.type != "gpu"  # which would draw less while it waits for its kernels
        known = at.idle_watts + over.download_watts, at.compute_watts, at.idle_watts + over.upload_watts
        return known, known

    options = {
        **CHANGES["everything"],
        "round": {"cohort": 4, "policy": policy, "window": 5.0, "buffer": 3, "deadline": 60.0},
        **({"server_link": line} if line else {}),
    }
    simulation, journal = play(changed(setup, options))
    clients = journal.tables["clients"]
    available = {device.name: available_memory_bytes(device) for device in setup.fleet.devices}
    line_rates = (line["download"], line["upload"]) if line else (inf, inf)
    facts = LedgerFacts(watts, deadline=60.0, line=line_rates, available=available)
    ledger = Ledger(facts)
    for verdict in journal.tables["eligibility"]:
        ledger.verdict(from_data(CheckedVerdict, verdict, "eligibility"), "eligibility")
    for record in journal.tables["rounds"]:
        mine = [from_data(CheckedFlight, c, "clients") for c in clients if c["round"] == record["round"]]
        ledger.round(from_data(CheckedRound, record, "rounds"), "rounds", [(flight, "clients") for flight in mine])
    assert [(check.name, check.first) for check in ledger.finish_checks() if check.broken] == []
    assert len(tally(journal)) > 2 and simulation.run.now > 0


def test_the_same_scenario_twice(setup: Setup) -> None:
    for line in (None, {**LINE, "sharing": "fifo"}):
        options = {**CHANGES["everything"], **({"server_link": line} if line else {})}
        (_, one), (_, other) = play(changed(setup, options)), play(changed(setup, options))
        assert one.tables == other.tables and one.states.keys() == other.states.keys()


# what must end, ends --------------------------------------------------------------------------------------------------


@pytest.fixture
def hurry() -> Iterator[None]:
    """A test that hangs fails."""

    def stop(*_: Any) -> None:
        raise TimeoutError("this hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


NEVER = {"markov": {"on": 1e-6, "off": 1e15}}
ALL: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "a deadline shorter than the fastest client": ({"round": {"deadline": 1e-6}}, None, "nobody eligible"),
    "a deadline shorter than the fastest client, and no gate": (
        {"round": {"deadline": 1e-6, "gate": "everyone"}}, "late", "below quorum",
    ),
    "empty batteries": ({"battery": {"capacity": (50.0, 50.0), "initial": (0.0, 0.0)}}, None, "nobody available"),
    "batteries that soon are empty": ({"battery": {"capacity": (1e-3, 1e-3)}}, "battery empty", "below quorum"),
    "everybody offline": ({"availability": NEVER}, None, "nobody available"),
    "no memory": ({"round": {"gate": "everyone"}, "memory": 10.0}, "out of memory", "below quorum"),
    **{
        f"all fail: {way}": ({"failures": {way: 1.0}}, outcome, "below quorum")
        for way, outcome in {
            "before_download": "dropped", "download": "dropped", "training": "dropped", "upload": "dropped",
            "corrupted": "corrupted", "truncated": "truncated",
        }.items()
    },
}  # fmt: skip


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("line", [None, LINE], ids=["alone", "shared link"])
@pytest.mark.parametrize("case", ALL)
def test_where_nobody_finishes_rounds_have_an_outcome(setup: Setup, case: str, line: dict[str, float] | None) -> None:
    options, outcome, said = ALL[case]
    simulation, journal = play(changed(setup, {**options, "server_link": line} if line else options))
    rounds = journal.tables["rounds"]
    assert rounds[0]["outcome"] == said and simulation.run.at.round == len(rounds) == 6
    assert all(r["finished"] == 0 and r["outcome"] != "completed" for r in rounds)
    assert set(tally(journal)) == ({outcome} if outcome else set())
    assert rounds[0]["selected"] == (7 if outcome else 0)
    if outcome == "battery empty":  # nobody is asked with an empty battery
        assert [r["selected"] for r in rounds] == [7, 0, 0, 0, 0, 0]
        assert [r["outcome"] for r in rounds[1:]] == ["nobody available"] * 5


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("line", [None, LINE], ids=["alone", "shared link"])
def test_a_link_so_slow_that_it_takes_years(setup: Setup, line: dict[str, float] | None) -> None:
    fleet = setup.fleet
    links = tuple(replace(one, upload_bits_per_second=1e-5) for one in fleet.links)
    slow = replace(setup, fleet=replace(fleet, links=links))
    simulation, journal = play(changed(slow, {"server_link": line} if line else {}))
    assert tally(journal) == {"finished": 42} and simulation.run.now > 100 * 365 * 86400


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("policy", ["synchronous", "asynchronous", "buffered", "semi-synchronous"])
@pytest.mark.parametrize("case", ["everybody offline", "all fail: upload", "empty batteries"])
def test_waiting_has_an_end(setup: Setup, case: str, policy: str) -> None:
    options = dict(ALL[case][0])
    rounds = {"policy": policy, "below_quorum": "wait", "patience": 60.0, "retry": 20.0}
    with pytest.raises(edgefl.errors.RunError, match="below_quorum"):
        play(changed(setup, {**options, "round": {**options.get("round", {}), **rounds}}))


@pytest.mark.parametrize("line", [None, LINE], ids=["alone", "shared link"])
def test_a_battery_is_empty_once(setup: Setup, line: dict[str, float] | None) -> None:
    """What is left of it by rounding alone doesn't send a client off again."""
    options = {"battery": {"capacity": (1.0, 100.0)}, "server_link": line}
    _, journal = play(changed(setup, options if line else {"battery": options["battery"]}))
    dead = Counter(c["client"] for c in journal.tables["clients"] if c["outcome"] == "battery empty")
    assert len(dead) > 3 and set(dead.values()) == {1}
