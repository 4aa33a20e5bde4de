"""Random fleets under every policy: nothing is created, lost unseen or done twice, and twice is the same."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import edgefl
from edgefl.console import main
from edgefl.errors import RunError
from edgefl.results.verify import verify

DEVICES = ("raspberry-pi-3b-plus", "raspberry-pi-4-4gb", "phone-mid", "macbook-air-m1")
LINKS = ("lte", "wifi-5", "5g-nr", "3g")
SHAPES = {"image": {"channels": 1, "size": 16, "classes": 4}, "text": {"vocabulary": 50, "classes": 4}}
TOWER = {"blocks": 2, "width": 16, "heads": 2}


def scenario(**sections: Any) -> dict[str, Any]:
    clients = {"image": 12, "text": 8, "image-text": 10}
    return {
        "name": "random-fleet", "seed": 1,
        "data": {"source": "declared", "clients": clients, "samples": "8..64", "test": 10, "shapes": SHAPES},
        "model": {"image": {**TOWER, "patch": 8}, "text": {**TOWER, "tokens": 8}},
        "method": "fedavg", "schedule": {"name": "end-to-end", "rounds": 5},
        "training": {"mode": "none", "batch": 8}, "evaluation": {"every": 2}, **sections,
    }  # fmt: skip


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def shares(names: tuple[str, ...]) -> st.SearchStrategy[Any]:
    chosen = st.lists(st.sampled_from(names), min_size=1, unique=True)
    return chosen.map(lambda some: dict.fromkeys(some, 1 / len(some)))


seconds = st.sampled_from([0.5, 2.0, 10.0, 60.0])
share = st.sampled_from([0.0, 0.0, 0.1, 0.4])
limit = st.sampled_from(["100 kbit/s", "1 Mbit/s", "20 Mbit/s"])
rate = maybe(limit)
background = st.fixed_dictionaries({"flows": st.integers(1, 3), "rate": rate})
failures = st.fixed_dictionaries(
    {
        **dict.fromkeys(("before_download", "download", "training"), share),
        **dict.fromkeys(("upload", "corrupted", "truncated"), st.sampled_from([0.0, 0.05])),
        "slow_down": st.fixed_dictionaries({"share": share, "factor": st.sampled_from([2.0, 9.0])}),
    }
).filter(lambda f: sum(v for v in f.values() if isinstance(v, float)) <= 1)
availability = st.just("always") | st.fixed_dictionaries(
    {"markov": st.fixed_dictionaries({"on": seconds, "off": seconds})}
)
battery = st.fixed_dictionaries(
    {
        "capacity": st.sampled_from(["1..20 J", "200 J"]),
        "initial": st.sampled_from(["0..100%", "100%"]),
        "charge_watts": st.sampled_from(["0 W", "2 W"]),
        "idle": st.booleans(),
    }
)
relays = st.fixed_dictionaries(
    {
        "count": st.sampled_from([1, 3, 10]),
        "link": st.sampled_from(["fibre", {"upload": "50 kbit/s", "latency": "0.2 s"}]),
        "failures": share,
    }
)
fleets = st.fixed_dictionaries(
    {
        "devices": shares(DEVICES),
        "links": shares(LINKS),
        "budgets": st.sampled_from([{}, {"memory": "60..400 KiB"}, {"seconds_per_round": "2..60 s"}]),
        "server_link": maybe(
            st.fixed_dictionaries({"download": rate, "upload": rate, "sharing": st.sampled_from(["fair", "fifo"])})
            | st.fixed_dictionaries({"download": rate, "upload": limit, "background": background})
        ),
        "relays": maybe(relays),
        "availability": availability,
        "failures": failures,
        "battery": maybe(battery),
        "throttling": st.booleans(),
    }
)
any_round = {
    "cohort": st.sampled_from([4, 10, 0.5, 1.0]),
    "stratify": st.booleans(),
    "gate": st.sampled_from(["eligible", "everyone"]),
    "deadline": maybe(seconds),
    "below_quorum": st.sampled_from(["skip", "wait"]),
    "retry": seconds,
    "patience": st.just("10 min"),
}
synchronous = {"over_selection": st.sampled_from([0.0, 0.5]), "quorum": st.sampled_from([1, 3])}
overlapping = {"concurrency": maybe(st.integers(1, 12)), "buffer": st.integers(1, 5), "window": seconds}
rounds = st.sampled_from(["synchronous", "asynchronous", "buffered", "semi-synchronous"]).flatmap(
    lambda policy: st.fixed_dictionaries(
        {"policy": st.just(policy), **any_round, **(synchronous if policy == "synchronous" else overlapping)}
    )
)
schedules = st.sampled_from(
    [
        {"name": "end-to-end", "rounds": 5},
        {"name": "layerwise", "rounds": 4, "stages": 2, "deliver_final": True},
        {"name": "progressive", "rounds": 4, "stages": 2},
    ]
)


def records(folder: Path) -> dict[str, bytes]:
    names = ("clients.jsonl", "rounds.jsonl", "eligibility.jsonl", "result.json")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def played(what: dict[str, Any], folder: Path) -> dict[str, bytes]:
    try:
        edgefl.run(what, out=folder)
    except RunError as error:  # a defined outcome: nobody came for as long as the scenario is patient
        assert "after" in str(error) and "of waiting" in str(error) or "below_quorum" in str(error)
        event("gave up")
    return records(folder)


@pytest.mark.slow(smaller="test_a_run_is_verified_as_it_ends")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleet=fleets, round=rounds, schedule=schedules, seed=st.integers(0, 3))
def test_random_fleets_keep_every_rule(fleet, round, schedule, seed):
    if fleet["relays"] and round["policy"] == "synchronous":
        fleet = {**fleet, "server_link": None}
    else:
        fleet = {**fleet, "relays": None}
    event(f"{round['policy']}, {'relays' if fleet['relays'] else 'no relays'}")
    what = scenario(fleet=fleet, round=round, schedule=schedule, seed=seed)
    with TemporaryDirectory() as place:
        one = played(what, Path(place) / "one")
        (run,) = verify(Path(place) / "one")["runs"].values()
        assert not [check for check in run["checks"] if check["broken"]]
        assert played(what, Path(place) / "two") == one
        by_event = {**what, "executor": {"clock": "events"}}
        assert played(by_event, Path(place) / "events") == one


def test_a_run_is_verified_as_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fleet = {"devices": "raspberry-pi-4-4gb", "links": "lte", "server_link": {"download": "1 Mbit/s"},
             "failures": {"upload": 0.2}}  # fmt: skip
    (tmp_path / "it.yaml").write_text(yaml.safe_dump({"edgefl": 1, **scenario(fleet=fleet)}))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "it.yaml"), "-o", str(tmp_path / "run"), "--verify"])
    out = capsys.readouterr().out
    assert not ended.value.code and "random-fleet: 5 rounds, every rule holds" in out
