"""Records that are written here by hand keep every rule, and each rule sees one number that was changed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

import edgefl
from edgefl import RUN_FORMAT
from edgefl.commands.run.finished_run import CheckedRun
from edgefl.console import main
from edgefl.devices import load_device, load_link
from edgefl.errors import RunError
from edgefl.records.rounds import SUMMED
from edgefl.results.conservation import RULES
from edgefl.results.verify import FILE_RULES, verify

DEVICE, LINK = "raspberry-pi-4-4gb", "lte"
BYTES, FLOPS, DEADLINE, LINE = 1_000_000, 10**15, 400.0, 2e6
"""What everybody moves each way and computes, and the server's line in bit/s."""
HAS = load_device(DEVICE).usable_memory_bytes - load_device(DEVICE).runtime_overhead_bytes

Table = list[dict[str, Any]]
Tables = dict[str, Table]


def scenario() -> dict[str, Any]:
    return {
        "edgefl": 1, "name": "by-hand", "seed": 1,
        "data": {"source": "declared", "clients": {"image": 9}, "samples": 40, "test": 10,
                 "shapes": {"image": {"channels": 1, "size": 8, "classes": 2}}},
        "model": {"image": {"tower": "vit", "blocks": 1, "width": 8, "heads": 1, "patch": 4}},
        "method": "fedavg", "schedule": {"name": "end-to-end", "rounds": 3}, "training": {"mode": "none"},
        "fleet": {"devices": DEVICE, "links": LINK, "server_link": {"download": LINE, "upload": LINE}},
        "round": {"cohort": 4, "deadline": DEADLINE},
    }  # fmt: skip


def flight(round: int, client: int, began: float, outcome: str, phase: str | None, share: float = 1.0) -> Any:
    """One client: 20 s down, 100 s of computing, 30 s up, of the last phase only a share."""
    place = ("start", "download", "compute", "upload", None).index(phase)
    done = [(1.0 if place > at else share) * (place >= at) for at in (1, 2, 3)]
    down, busy, up = (s * part for s, part in zip((20.0, 100.0, 30.0), done, strict=True))
    moved = [int(BYTES * done[0]), int(BYTES * done[2])]
    one, other = load_device(DEVICE), load_link(LINK)
    joules = one.compute_watts * busy + one.idle_watts * (down + up)
    joules += other.download_watts * down + other.upload_watts * up
    return {
        "round": round, "base_round": round, "client": client, "kind": "image", "device": DEVICE, "link": LINK,
        "stage": 1, "samples": 40, "outcome": outcome, "phase": phase, "staleness": 0, "weight_factor": 1.0,
        "slow_down": 1.0, "dispatched_virtual_seconds": began, "ended_virtual_seconds": began + down + busy + up,
        "download_seconds": down, "compute_seconds": busy, "upload_seconds": up, "virtual_seconds": down + busy + up,
        "energy_joules": joules, "carried_download_bytes": moved[0], "carried_upload_bytes": moved[1],
        "lost_download_bytes": 0 if place > 1 else moved[0], "lost_upload_bytes": 0 if place > 3 else moved[1],
        "download_bytes": BYTES - 500, "upload_bytes": BYTES - 500, "serialised_download_bytes": BYTES,
        "serialised_upload_bytes": BYTES, "forward_flops": FLOPS, "backward_flops": 2 * FLOPS,
        "executed_flops": int(3 * FLOPS * done[1]), "loss": None,
    }  # fmt: skip


def tables() -> Tables:
    """Three rounds of four; clients 7 and 8 are refused, 8 from the third round on."""
    clients: Table = []
    rounds: Table = []
    now, final = 0.0, 0
    ends = [("finished", None, 1.0), ("dropped", "compute", 0.4), ("corrupted", "upload", 1.0),
            ("late", "upload", 0.5), ("dropped", "start", 0.0), ("offline", "download", 0.3)]  # fmt: skip
    for number in (1, 2, 3):
        mine = [flight(number, c, now, *ends[(c + number) % 6]) for c in range(number, number + 4)]
        if number == 2:
            mine[0] = flight(number, 8, now, "finished", None)
        if number == 3:
            mine[3] = flight(number, 6, now, "rejected", None)
        rejected = [c["client"] for c in mine if c["outcome"] == "rejected"]
        clients += mine
        final = 800 * 9 if number == 3 else 0  # tensor bytes; with headers 1,000 a client
        outcomes = Counter(c["outcome"] for c in mine)
        sums = {name: sum(c[name] for c in mine) for name in SUMMED}
        sums["download_bytes"] += final
        for name in ("serialised_download_bytes", "carried_download_bytes"):
            sums[name] += 1000 * 9 * (final > 0)
        seconds = max(c["virtual_seconds"] for c in mine) + 7.0
        rounds.append({
            "round": number, "stage": 1, "outcome": "completed", "started_virtual_seconds": now,
            "virtual_seconds": seconds, "clients": {"image": 9}, "eligible": {"image": 8 - (number > 2)},
            "samples": {"image": 360}, "eligible_samples": {"image": 320 - 40 * (number > 2)}, "selected": 4,
            "excluded": {"samples": 0, "lost_classes": None, "lost_modalities": None, "modality_samples_share": {}},
            "unavailable": 1, "under_way": 0, "finished": outcomes["finished"], "late": outcomes["late"],
            "failed": 4 - outcomes["finished"] - outcomes["late"], "outcomes": dict(outcomes), **sums,
            "final_delivery_bytes": final, "server_seconds": 7.0, "server_works": [], "losses": {}, "metrics": {},
            "rejected": rejected, "rejections": {"not finite": 1} if rejected else {}, "diverged": False,
        })  # fmt: skip
        now += seconds
    eligibility = [
        {"round": round, "client": c, "clients": 1, "device": DEVICE, "eligible": c != 7 and round < 3,
         "binding": "memory", "memory_limit": "device", "costs": {"memory": HAS + (5 if c == 7 or round == 3 else -5)},
         "margins": {"memory": -5.0 if c == 7 or round == 3 else 5.0, "flops": None, "bytes": None}}
        for round, c in [*((1, c) for c in range(9)), (3, 8)]
    ]  # fmt: skip
    added = (*SUMMED, "selected", "unavailable", "finished", "late", "failed", "server_seconds")
    totals = {name: sum(r[name] for r in rounds) for name in added}
    result = {"rounds": 3, "virtual_seconds": now, "metrics": {}, "totals": totals}
    scored, group = evaluated()
    rounds[2]["client_metrics"] = [group]
    return {"clients": clients, "scored": scored, "rounds": rounds, "eligibility": eligibility, "result": [result]}


def evaluated() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Two clients that were scored after round 3 on 10 and 30 samples of their own, and all clients' sums."""
    sums = {"download_bytes": 5, "serialised_download_bytes": 6, "forward_flops": 7, "energy_joules": 0.5}
    scored = [
        {"round": 3, "client": c, "kind": "image", "device": DEVICE, "eligible": True,
         "samples": samples, **sums, "metrics": {"accuracy": accuracy}}
        for c, samples, accuracy in ((0, 10, 0.25), (1, 30, 0.75))
    ]  # fmt: skip
    accuracy = {"clients": 2, "mean": 0.5, "weighted_mean": 0.625, "deviation": 0.25, "worst_decile": 0.25}
    group = {
        "by": "all", "group": "all", "clients": 9, "scored": 2, "too_small": 4, "without": 3, "samples": 40,
        **{name: 2 * value for name, value in sums.items()}, "longest_virtual_seconds": 1.0,
        "metrics": {"accuracy": accuracy},
    }  # fmt: skip
    return scored, group


def written(folder: Path, found: Tables, more: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    (folder / "scenario.yaml").write_text(yaml.safe_dump({**scenario(), **(more or {})}))
    (folder / "environment.json").write_text(json.dumps({"run_format": RUN_FORMAT}))
    (folder / "models.json").write_text("{}")
    for name in ("clients", "scored", "rounds", "eligibility"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found[name]))
    for result in found["result"]:
        (folder / "result.json").write_text(json.dumps(result))
        save_file({"image/w": torch.ones(3)}, folder / "weights.safetensors")
        files = {
            path.name: {"bytes": len(raw), "blake2b": hashlib.blake2b(raw, digest_size=16).hexdigest()}
            for path in folder.iterdir()
            for raw in [path.read_bytes()]
        }
        (folder / "files.json").write_text(json.dumps({"files": files}))
    return folder


def checks(folder: Path) -> dict[str, dict[str, Any]]:
    (run,) = verify(folder)["runs"].values()
    assert run["valid"] == (not any(c["broken"] for c in run["checks"]))
    return {check["name"]: check for check in run["checks"]}


def test_a_valid_run_keeps_every_rule(tmp_path: Path):
    found = checks(written(tmp_path / "run", tables()))
    assert {name: check["broken"] for name, check in found.items()} == dict.fromkeys((*RULES, *FILE_RULES), 0)
    seen = {name: check["records"] for name, check in found.items()}
    of_flights = ("bytes", "delivered", "phases", "clock", "one flight", "deadline", "energy", "refused")
    # of the line: each way in each round; totals: twelve sums, six counts and times, and the end
    others = {"verdicts": 10, "memory": 10, "rounds": 3, "counts": 3, "round sums": 3, "server link": 6, "totals": 19}
    others |= {"rejected": 3, "diverged": 3, "scored": 1, "files": 1, "weights": 1}
    others |= {"relays": 0, "exchanges": 0, "server time": 0}
    assert seen == {**dict.fromkeys(of_flights, 12), **others}
    assert all(check["first"] is None for check in found.values())
    assert {name: check["note"] for name, check in found.items() if check["note"]} == {"relays": "no relays"}


def add(table: str, row: int, name: str, by: float) -> Callable[[Tables], None]:
    def change(found: Tables) -> None:
        found[table][row][name] += by

    return change


def put(table: str, row: int, name: str, value: Any) -> Callable[[Tables], None]:
    def change(found: Tables) -> None:
        place = found[table][row]
        *path, last = name.split(".")
        for part in path:
            place = place[part]
        place[last] = value

    return change


# clients.jsonl: 0-3 of round 1, 4-7 of round 2, 8-11 of round 3; the second round's first (row 4) is client 8, finished
def exchange(bytes_up: int, served: float = 0.1) -> Callable[[Tables], None]:
    """Half of a split model, of which 800 bytes each way were planned in two exchanges."""

    def change(found: Tables) -> None:
        planned = {"serialised_download_bytes": 800, "serialised_upload_bytes": 800, "server_seconds": served}
        server = {"server_peak_memory_bytes": 1, "server_flops": 1}
        found["clients"][4]["exchange"] = {"trips": 2, **planned, **server}
        found["clients"][4]["exchanged"] = {"trips": 2, "download_bytes": 800, "upload_bytes": bytes_up}

    return change


def test_exchanges_are_checked_where_a_model_is_split(tmp_path: Path):
    found = tables()
    exchange(800)(found)
    counted = checks(written(tmp_path / "run", found))
    for name in ("exchanges", "server time"):
        assert (counted[name]["records"], counted[name]["broken"]) == (1, 0)


CHANGES = [
    ("exchanges", exchange(799), "clients.jsonl:5"),
    ("server time", exchange(800, served=1e3), "rounds.jsonl:2"),
    ("bytes", add("clients", 4, "lost_upload_bytes", -1), "clients.jsonl:5"),
    ("bytes", add("clients", 4, "carried_download_bytes", 1), "clients.jsonl:5"),
    ("bytes", put("clients", 0, "lost_download_bytes", BYTES + 1), "clients.jsonl:1"),
    ("delivered", add("clients", 4, "carried_upload_bytes", -1), "clients.jsonl:5"),
    ("delivered", add("clients", 4, "lost_download_bytes", 1), "clients.jsonl:5"),
    ("delivered", put("clients", 0, "lost_upload_bytes", 0), "clients.jsonl:1"),
    ("phases", add("clients", 4, "compute_seconds", 1e-3), "clients.jsonl:5"),
    ("phases", put("clients", 4, "phase", "upload"), "clients.jsonl:5"),
    ("phases", put("clients", 4, "phase", "landing"), "clients.jsonl:5"),
    ("phases", put("clients", 0, "upload_seconds", 3.0), "clients.jsonl:1"),
    ("phases", add("clients", 4, "executed_flops", -1), "clients.jsonl:5"),
    ("phases", put("clients", 0, "executed_flops", 3 * FLOPS + 1), "clients.jsonl:1"),
    ("phases", put("clients", 3, "executed_flops", 1), "clients.jsonl:4"),
    ("clock", add("clients", 4, "ended_virtual_seconds", -1e-3), "clients.jsonl:5"),
    ("clock", add("clients", 4, "dispatched_virtual_seconds", -200.0), "clients.jsonl:5"),
    ("clock", put("clients", 4, "base_round", 3), "clients.jsonl:5"),
    ("clock", put("clients", 0, "ended_virtual_seconds", -1.0), "clients.jsonl:1"),
    ("one flight", put("clients", 7, "client", 8), "clients.jsonl:8"),
    ("deadline", put("clients", 4, "virtual_seconds", DEADLINE + 0.1), "clients.jsonl:5"),
    ("energy", add("clients", 4, "energy_joules", 1e-5), "clients.jsonl:5"),
    ("energy", put("clients", 4, "device", "raspberry-pi-5-8gb"), "clients.jsonl:5"),
    ("verdicts", put("eligibility", 1, "margins.bytes", -1.0), "eligibility.jsonl:2"),
    ("verdicts", put("eligibility", 7, "eligible", True), "eligibility.jsonl:8"),
    ("memory", put("eligibility", 1, "memory_limit", "owner owner"), "eligibility.jsonl:2"),
    ("memory", put("eligibility", 1, "memory_limit", None), "eligibility.jsonl:2"),
    ("memory", put("eligibility", 1, "margins.memory", None), "eligibility.jsonl:2"),
    ("memory", put("eligibility", 1, "costs.memory", HAS - 6), "eligibility.jsonl:2"),
    ("memory", put("eligibility", 1, "costs.memory", HAS), "eligibility.jsonl:2"),
    ("refused", put("clients", 5, "client", 7), "clients.jsonl:6"),
    ("refused", put("clients", 9, "client", 8), "clients.jsonl:10"),
    ("rounds", add("rounds", 1, "started_virtual_seconds", 1e-3), "rounds.jsonl:2"),
    ("rounds", put("rounds", 1, "virtual_seconds", -1.0), "rounds.jsonl:2"),
    ("counts", add("rounds", 1, "finished", 1), "rounds.jsonl:2"),
    ("counts", put("rounds", 1, "outcomes.finished", 4), "rounds.jsonl:2"),
    ("counts", add("rounds", 1, "selected", 1), "rounds.jsonl:2"),
    ("counts", put("rounds", 1, "eligible.image", 10), "rounds.jsonl:2"),
    ("counts", put("clients", 11, "round", 4), "rounds.jsonl:3"),
    *(("round sums", add("rounds", 1, name, 1), "rounds.jsonl:2") for name in SUMMED),
    ("round sums", add("rounds", 2, "carried_download_bytes", 1), "rounds.jsonl:3"),
    ("round sums", put("rounds", 2, "final_delivery_bytes", 0), "rounds.jsonl:3"),
    ("server link", put("clients", 4, "carried_download_bytes", 10 * BYTES), "rounds.jsonl:2"),
    ("server link", put("clients", 4, "carried_upload_bytes", 20 * BYTES), "rounds.jsonl:2"),
    ("rejected", put("rounds", 1, "rejected", [3]), "rounds.jsonl:2"),
    ("rejected", put("rounds", 2, "rejections", {}), "rounds.jsonl:3"),
    ("rejected", put("clients", 4, "outcome", "rejected"), "rounds.jsonl:2"),
    ("diverged", put("rounds", 1, "losses", {"image": None}), "rounds.jsonl:2"),
    ("diverged", put("rounds", 1, "metrics", {"image": {"accuracy": None}}), "rounds.jsonl:2"),
    ("scored", put("scored", 0, "metrics.accuracy", 0.3), "rounds.jsonl:3"),
    ("scored", put("scored", 1, "energy_joules", 0.4), "rounds.jsonl:3"),
    ("totals", put("result", 0, "totals.selected", 13), "result.json"),
    ("totals", put("result", 0, "totals.energy_joules", 1.0), "result.json"),
    ("totals", put("result", 0, "virtual_seconds", 1.0), "result.json"),
]


@pytest.mark.parametrize(("rule", "change", "where"), CHANGES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CHANGES)])
def test_each_rule_sees_one_changed_number(rule: str, change: Callable[[Tables], None], where: str, tmp_path: Path):
    found = tables()
    change(found)
    check = checks(written(tmp_path / "run", found))[rule]
    assert check["broken"] >= 1
    assert check["first"]["where"] == where and check["first"]["values"]


BEHIND = {"fleet": {"devices": DEVICE, "links": LINK, "relays": {"count": 3, "failures": 0.1}}}


def behind_relays() -> Tables:
    """The same rounds behind three relays, of which each serves a client or two.

    In the first no update arrives; in the second a relay without any is lost.
    """
    found = tables()
    for row in found["clients"]:
        row["relay"] = row["client"] % 3
    for round in found["rounds"]:
        mine = [c for c in found["clients"] if c["round"] == round["round"]]
        sent = any(c["outcome"] in ("finished", "rejected") for c in mine)
        last = max(c["ended_virtual_seconds"] for c in mine)
        round |= {
            "relays": 3, "relays_failed": int(round["round"] == 2), "relay_download_bytes": 3 * BYTES,
            "relay_upload_bytes": BYTES * sent, "last_relay": 1, "last_sum_virtual_seconds": last + 2.0,
        }  # fmt: skip
    assert [round["relay_upload_bytes"] for round in found["rounds"]] == [0, BYTES, BYTES]
    found["result"][0]["totals"] |= {
        name: sum(round[name] for round in found["rounds"])
        for name in ("relays", "relays_failed", "relay_download_bytes", "relay_upload_bytes")
    }
    return found


RELAY_CHANGES = [
    put("rounds", 1, "relays", 2),
    put("rounds", 1, "relays", 5),
    put("rounds", 1, "relays_failed", 4),
    put("rounds", 1, "relay_download_bytes", BYTES - 1),
    put("rounds", 1, "relay_download_bytes", 4 * BYTES + 1),
    put("rounds", 1, "relay_upload_bytes", 0),
    put("rounds", 0, "relay_upload_bytes", 1),
    put("rounds", 1, "last_relay", None),
    put("rounds", 1, "last_relay", 3),
    put("rounds", 1, "last_sum_virtual_seconds", None),
    add("rounds", 1, "last_sum_virtual_seconds", -3.0),
    add("rounds", 1, "last_sum_virtual_seconds", 6.0),
    put("clients", 4, "relay", 3),
    put("clients", 8, "outcome", "relay failed"),
    lambda found: found["clients"][4].pop("relay"),
    lambda found: found["rounds"][1].pop("relays"),
]


def test_a_valid_run_behind_relays_keeps_every_rule(tmp_path: Path):
    found = checks(written(tmp_path / "run", behind_relays(), BEHIND))
    assert not [check for check in found.values() if check["broken"]]
    assert (found["relays"]["records"], found["relays"]["note"]) == (3, None)
    assert found["totals"]["records"] == 23


@pytest.mark.parametrize("change", RELAY_CHANGES, ids=range(len(RELAY_CHANGES)))
def test_a_changed_number_of_relays_is_seen(change: Callable[[Tables], Any], tmp_path: Path):
    found = behind_relays()
    change(found)
    assert checks(written(tmp_path / "run", found, BEHIND))["relays"]["broken"] >= 1


def test_a_lost_relay_loses_all_updates_of_its_clients(tmp_path: Path):
    found = behind_relays()
    lost, spared = found["clients"][8], found["clients"][11]
    assert (lost["outcome"], spared["outcome"], lost["relay"], spared["relay"]) == ("finished", "rejected", 0, 0)
    found["rounds"][2]["relays_failed"] = 1
    lost |= {"outcome": "relay failed", "phase": "upload", "lost_upload_bytes": BYTES}
    assert checks(written(tmp_path / "one", found, BEHIND))["relays"]["broken"] == 1
    spared |= {"outcome": "relay failed", "phase": "upload", "lost_upload_bytes": BYTES}
    found["rounds"][2]["relay_upload_bytes"] = 0
    assert checks(written(tmp_path / "both", found, BEHIND))["relays"]["broken"] == 0


def test_an_owner_s_budget_may_be_below_the_device_s_and_not_above(tmp_path: Path):
    found = tables()
    for row in found["eligibility"]:
        row["memory_limit"] = "owner"
        row["costs"]["memory"] -= 1000
    assert checks(written(tmp_path / "below", found))["memory"]["broken"] == 0
    found["eligibility"][0]["costs"]["memory"] += 1001
    assert checks(written(tmp_path / "above", found))["memory"]["broken"] == 1
    ignoring = {**scenario()["fleet"], "budgets": {"within_device": False}}
    assert checks(written(tmp_path / "ignoring", found, {"fleet": ignoring}))["memory"]["broken"] == 0
    # a leaner runtime leaves more
    lean = {**scenario()["fleet"], "runtime": "mnn"}
    assert checks(written(tmp_path / "lean", found, {"fleet": lean}))["memory"]["broken"] == 0


def test_every_rule_is_broken_by_some_change():
    assert {rule for rule, _, _ in CHANGES} | {"relays"} == set(RULES) and RELAY_CHANGES


def test_a_run_that_goes_on_is_checked_as_far_as_it_is(tmp_path: Path):
    found = tables()
    found["result"], found["rounds"] = [], found["rounds"][:2]
    folder = written(tmp_path / "run", found)
    with (folder / "clients.jsonl").open("a") as file:
        file.write('{"round": 3, "cli')  # being written
    check = checks(folder)
    assert not any(c["broken"] for c in check.values())
    assert (check["files"]["note"], check["weights"]["note"]) == ("no checkpoint yet", "not finished")
    assert check["bytes"]["records"] == 8 and check["totals"]["records"] == 0


def test_what_a_rule_doesn_t_apply_to_is_said(tmp_path: Path):
    fleet = {"devices": DEVICE, "links": LINK}
    more = {"round": {"cohort": 4, "gate": "everyone"}, "fleet": fleet}
    found = tables()
    put("clients", 5, "client", 7)(found)
    check = checks(written(tmp_path / "run", found, more))
    assert not any(c["broken"] for c in check.values())
    assert {name: c["note"] for name, c in check.items() if c["note"]} == {
        "refused": "the gate refuses no client",
        "deadline": "no deadline",
        "server link": "no limit",
        "relays": "no relays",
    }
    for row in found["eligibility"]:
        row["clients"] = 2
    check = checks(written(tmp_path / "grouped", found, {"fleet": fleet}))
    assert check["refused"]["records"] == 0 and check["refused"]["note"] == "verdicts name groups of clients"


def test_a_verdict_of_the_same_round_may_come_after_the_dispatch(tmp_path: Path):
    found = tables()
    later = {**found["eligibility"][8], "round": 2, "eligible": False, "margins": {"memory": -1.0}}
    found["eligibility"].insert(9, later)
    assert checks(written(tmp_path / "run", found))["refused"]["first"]["where"] == "clients.jsonl:5"
    # an asynchronous server judges anew whenever its model has changed
    check = checks(written(tmp_path / "other", found, {"round": {"cohort": 4, "policy": "asynchronous"}}))
    assert check["refused"]["records"] == 12 and check["refused"]["broken"] == 0


def test_every_run_of_a_comparison_is_checked(tmp_path: Path):
    found = tables()
    written(tmp_path / "one", found)
    found["clients"][4]["energy_joules"] += 1.0
    written(tmp_path / "two", found)
    listed = [{"label": f"seed {name}", "folder": name, "sets": {}} for name in ("one", "two")]
    (tmp_path / "compare.json").write_text(json.dumps({"runs": listed}))
    all_ = verify(tmp_path)
    assert not all_["valid"] and {label: run["valid"] for label, run in all_["runs"].items()} == {
        "seed one": True,
        "seed two": False,
    }


def test_wrong_folders_and_lines(tmp_path: Path):
    with pytest.raises(RunError, match="there is no run"):
        verify(tmp_path / "nowhere")
    found = tables()
    del found["clients"][3]["carried_upload_bytes"]
    with pytest.raises(RunError, match=r"clients\.jsonl:4: field 'carried_upload_bytes' is missing"):
        verify(written(tmp_path / "old", found))
    found = tables()
    found["rounds"][1]["virtual_seconds"] = "long"
    with pytest.raises(RunError, match=r"rounds\.jsonl:2: field 'virtual_seconds': expected `float`, got `str`"):
        verify(written(tmp_path / "odd", found))
    folder = written(tmp_path / "damaged", tables())
    text = (folder / "clients.jsonl").read_text().replace('{"round": 2', '{"round" 2', 1)
    (folder / "clients.jsonl").write_text(text)
    with pytest.raises(RunError, match=r"clients\.jsonl:5: this line is damaged"):
        verify(folder)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def answer(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["run", "--verify", "--resume", *words])
        return int(ended.value.code or 0), capsys.readouterr().out

    code, out = answer(str(written(tmp_path / "good", tables())))
    assert code == 0 and "by-hand: 3 rounds, every rule holds" in out
    assert "energy            12       0" in out
    found = tables()
    add("clients", 4, "energy_joules", 1.0)(found)
    folder = written(tmp_path / "bad", found)
    code, out = answer(str(folder))
    assert code == 1 and f"energy: {folder}/clients.jsonl:5: round 2, client 8, energy_joules" in out
    code, out = answer(str(folder), "--as", "json")
    assert code == 1 and json.loads(out)["verified"]["valid"] is False
    run = edgefl.run(resume=folder, verify=True)
    assert isinstance(run, CheckedRun) and run.is_finished and run.verified == verify(folder)


@pytest.mark.parametrize("name", ["weights.safetensors", "clients.jsonl", "models.json", "result.json", "files.json"])
def test_every_file_of_a_finished_run_is_covered(name: str, tmp_path: Path):
    folder = written(tmp_path / "run", tables())
    path = folder / name
    if name == "files.json":
        path.unlink()
    elif name == "weights.safetensors":
        save_file({"image/w": torch.tensor([1.0, float("nan"), 1.0])}, path)
    else:
        path.write_bytes(path.read_bytes().rstrip(b"\n") + b" \n")
    check = checks(folder)
    assert check["files"]["broken"] == 1 and name in check["files"]["first"]["values"]["difference"]
    assert check["weights"]["broken"] == (name == "weights.safetensors")
