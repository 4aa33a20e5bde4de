"""tools/bench.py: its arithmetic, its watch on the parts of a round, its models, and trials."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from edgefl.devices import load_device
from edgefl.scenario import load

TOOLS = Path(__file__).resolve().parents[2] / "tools"


sys.path.append(str(TOOLS))

import measuring  # noqa: E402 - the tools' folder must be on the path
from bench import (  # noqa: E402
    all as everything,
)
from bench import bare, clock, contestants, jobs, networks, pairing, parts, peers, plain, roofline, rounds  # noqa: E402

# --- predicted steps -------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_the_plain_models_have_the_parameters_that_the_formula_gives")
def test_a_network_has_its_published_flops() -> None:
    """torchvision's page says 1.81 and 0.30 billion multiplications for an image; data has no gradient."""
    rest, of_first = 1_814_073_344, 64 * 3 * 49 * 112**2
    operators = networks.operators_of("ResNet-18, batch 8")
    assert operators[:, 0] @ operators[:, 2] == pytest.approx(8 * 2 * (3 * rest - of_first), rel=1e-6)
    operators = networks.operators_of("MobileNetV2, batch 4")
    assert operators[:, 0] @ operators[:, 2] == pytest.approx(4 * 2 * 3 * 0.3008e9, rel=0.02)


def test_a_roofline_has_the_amounts_of_a_block_over_their_seconds() -> None:
    """Each call takes a second: a block's FLOPs over those of eleven products, its bytes over those of 16 others."""
    ticks = iter(range(10**6))
    found = roofline.roofline(load_device("n100-mini-pc"), lambda: float(next(ticks)), repeat=1)
    dense = [9 * 2 * 1024 * width * 4 * width for width in (64, 192, 384)]
    attention = [3.5 * 4 * 16 * (width // 32) * 64**2 * 32 for width in (64, 192, 384)]
    assert found.flops_per_second == pytest.approx(sum(dense + attention) / (3 * 11))
    moved = [4 * 1024 * width * (2 * 2 + 2 * 3 + 8 + 12 + 4 * 3 + 4 * 2 + 2 * 6) for width in (64, 192, 384)]
    assert found.memory_bytes_per_second == pytest.approx(sum(moved) / (3 * 16))


# --- arithmetic ------------------------------------------------------------------------------------------------------


def test_a_spread_is_the_median_and_the_interpolated_quartiles() -> None:
    assert measuring.spread([4.0, 1.0, 3.0, 2.0]) == measuring.Spread(2.5, 1.75, 3.25, 4)
    assert measuring.spread([5.0, 1.0, 2.0, 3.0, 4.0]) == measuring.Spread(3.0, 2.0, 4.0, 5)
    assert measuring.spread([7.0]) == measuring.Spread(7.0, 7.0, 7.0, 1)
    assert str(measuring.spread([4.0, 1.0, 3.0, 2.0])) == "2.50 (1.75 to 3.25)"
    with pytest.raises(ValueError, match="at least one"):
        measuring.spread([])


def test_ratios_are_those_of_the_same_turn() -> None:
    assert measuring.ratios([2.0, 9.0], [4.0, 3.0]) == [0.5, 3.0]
    with pytest.raises(ValueError, match="3 turns can't be paired with 2"):
        measuring.ratios([1.0, 1.0, 1.0], [1.0, 1.0])


def test_everybody_has_every_place_equally_often() -> None:
    names = ["a", "b", "c"]
    assert [measuring.in_turn(names, turn) for turn in range(3)] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert measuring.in_turn([], 5) == []


def test_the_rest_is_what_the_parts_leave() -> None:
    assert rounds.shares({"train": 3.0, "copy": 1.5}, 6.0) == {"train": 3.0, "copy": 1.5, "the rest": 1.5}


def test_a_table_is_markdown() -> None:
    assert (
        measuring.table(["who", "s"], [["a", "1"], ["b", "2"]]) == "| who | s |\n| --- | ---: |\n| a | 1 |\n| b | 2 |"
    )


def test_a_row_pools_the_pairings_of_a_contestant() -> None:
    def outcome(*rounds: float, pss: int = 0) -> Any:
        return pairing.Outcome(list(rounds), [2 * s for s in rounds], first=rounds[0], whole=sum(rounds), pss=pss)

    first = pairing.Pairing({"bare-1": outcome(1.0, 2.0), "edgefl-1": outcome(1.5, 2.0, pss=5)})
    second = pairing.Pairing({"bare-1": outcome(4.0, 4.0, pss=7), "pfl-1": outcome(8.0, 4.0)})
    found = peers.row("edgefl-1", [first, second])
    assert found["to_bare-1"] == {"median": 1.25, "low": 1.125, "high": 1.375, "count": 2}
    assert found["processor_to_bare-1"] == found["to_bare-1"]  # twice the seconds on both sides
    assert found["to_bare-2"] is None and found["pss_bytes"] == 5
    # the bare loop took part in both
    assert peers.row("bare-1", [first, second])["round_seconds"]["count"] == 4
    assert peers.row("bare-1", [first, second])["pss_bytes"] == 7
    assert peers.row("flower-2", [first, second]) is None
    line = peers.cells("edgefl-1", "edgefl, inline", found)
    assert line[:4] == ["edgefl, inline", "1.750", "1.25 (1.12 to 1.38)", "–"]
    assert len(line) == len(peers.HEAD)
    assert peers.cells("bare-1", "bare loop", peers.row("bare-1", [first, second]))[2] == "1"


def test_large_jobs_pair_one_contestant_at_a_time_with_the_bare_loops() -> None:
    names = ["bare-1", "edgefl-1", "bare-2", "pfl-1"]
    assert peers.groups(names, jobs.JOBS["vit"]) == [names]
    assert peers.groups(names, jobs.JOBS["big"]) == [
        ["bare-1", "bare-2", "edgefl-1"],
        ["bare-1", "bare-2", "pfl-1"],
    ]
    assert peers.groups(["bare-1"], jobs.JOBS["big"]) == [["bare-1"]]


def test_rows_of_parts_are_medians_and_shares_of_the_clocked_round() -> None:
    def seconds(train: float, rest: float) -> dict[str, float]:
        return {**dict.fromkeys(parts.PARTS, 0.0), "train": train, "the rest": rest}

    found = {
        "whole": [0.9, 1.0, 5.0],
        "clocked": [1.0, 2.0, 3.0],
        "own": [seconds(0.5, 0.5), seconds(1.0, 1.0), seconds(2.5, 0.5)],
        "workers": [{"train": 0.1}, {"train": 0.3}, {"train": 0.2}],
    }
    rows = {line[0]: line[1:] for line in rounds.rows(found)}
    assert rows["train"] == ["1000.0", "50.0%", "200.0"]
    assert rows["the rest"] == ["500.0", "25.0%", "–"]
    assert rows["the round, without"][0] == "1000.0" and rows["the round, with clocks"][0] == "2000.0"


# --- everything, with its aims ---------------------------------------------------------------------------------------


def test_a_round_is_held_against_its_loops_and_its_aim() -> None:
    taken = pairing.Pairing(others=[0.1], reasons={"edgefl-4": "no memory"})
    for name, seconds in (
        ("bare-1", [1.0, 2.0]),
        ("bare-2", [0.5, 1.0]),
        ("edgefl-1", [1.1, 2.4]),
        ("edgefl-2", [0.5, 1.0]),
    ):
        taken.outcomes[name] = pairing.Outcome(rounds=seconds, whole=10 * seconds[0])
    told = list(everything.rows_of("vit", taken))
    rows = {(row.what, row.against): row for row in told if isinstance(row, everything.Row)}
    inline = rows["vit, a round: edgefl, inline", "bare loop, one process"]
    assert inline.ratio == measuring.Spread(pytest.approx(1.15), pytest.approx(1.125), pytest.approx(1.175), 2)
    assert (inline.takes, inline.aim, inline.reached) == ("1.750 s", "at most 1.05", False)
    two = rows["vit, a round: edgefl, two workers", "bare loop, one process"]
    assert two.reached and two.cells()[2:] == ["0.50 (0.50 to 0.50)", "0.750 s", "at most 0.55", "yes"]
    loops = rows["vit, a round: edgefl, two workers", "bare loop, two processes"]
    assert loops.ratio.median == 1 and loops.reached is None and loops.cells()[-2:] == ["", ""]
    assert len(rows) == 3  # none of four workers
    assert told[-2] == "vit, edgefl, four workers: left out, no memory"
    big = [row for row in everything.rows_of("big", taken) if isinstance(row, everything.Row)][-1]
    assert big.what == "big, the whole process: edgefl, two workers" and big.ratio.median == 5 / 11 and big.reached


def test_what_is_timed_takes_turns_with_the_import_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Path]] = []

    def taking(what: str, *seconds: float, **more: Any) -> Any:
        left = {tmp_path / "0": iter(seconds), tmp_path / "1": iter([2 * each for each in seconds])}

        def one(version: everything.Version) -> float:
            asked.append((what, version.folder))
            return next(left[version.folder])

        return everything.Timed(what, one, 1.0, **more)

    def fails(version: everything.Version) -> float:
        raise pairing.Failed("it broke")

    monkeypatch.setattr(everything, "TORCH", taking("torch", 1.0, 1.0, 2.0))
    versions = [everything.Version(TOOLS.parent, sys.executable, tmp_path / name) for name in "01"]
    items = [
        taking("validate", 9.0, 1.5, 3.5, above=True),
        taking("cold", 4.0, 4.0, warmed=False),
        everything.Timed("broken", fails, 1.0),
    ]
    told = list(everything.timed(items, 2, versions))
    rows = [row for row in told if isinstance(row, everything.Row)]
    assert [(row.what, row.against, row.ratio.median, row.reached) for row in rows] == [
        ("validate", "torch", 1.625, True), ("validate", "the version before", 0.5, None),
        ("cold", "torch", 3.0, False), ("cold", "the version before", 0.5, None),
    ]  # fmt: skip
    assert rows[0].takes == "2.5 s, 1.0 s more" and rows[0].aim == "at most 1 s more"
    assert told[-1] == "broken: left out, it broke"
    # a first turn fills the caches; each turn begins one further
    assert [what + folder.name for what, folder in asked] == [
        "torch0", "validate0", "validate1",
        "torch0", "validate0", "validate1", "cold0", "cold1",
        "validate0", "validate1", "cold0", "cold1", "torch0",
    ]  # fmt: skip


@pytest.mark.slow(smaller="test_a_process_is_watched_while_it_computes_and_ends_as_it_would")
def test_data_sets_are_opened_in_processes_of_their_own(tmp_path: Path) -> None:
    version = everything.Version(TOOLS.parent, sys.executable, tmp_path)
    sets = {
        "digits": ["quickstart", "data.source=digits", "data.clients={image: 30}"],
        "none": ["quickstart", "data.source=table", "data.folders.table=nowhere"],
    }
    told = list(everything.data([version, version], sets, turns=1))
    rows = [row for row in told if isinstance(row, everything.Row)]
    assert [(row.what, row.against) for row in rows] == [
        ("open digits, from an empty cache", "the version before"),
        ("open digits, from the cache", "an empty cache"),
        ("open digits, from the cache", "the version before"),
    ]
    assert rows[1].ratio.median < 1 and rows[1].reached
    assert len(told) == 4 and isinstance(told[-1], str) and told[-1].startswith("open none: left out, ")


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    version = everything.Version(TOOLS.parent, sys.executable, tmp_path)
    with pytest.raises(pairing.Failed, match="exit status 1: ZeroDivisionError"):
        version.run(["-c", "1 / 0"])
    seconds, told = version.run(["-c", "import os; print(os.environ['EDGEFL_CACHE'])"], tmp_path / "own")
    assert seconds > 0 and told == f"{tmp_path / 'own'}\n"


def test_another_checkout_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        everything.main(["--against", str(tmp_path)])
    assert "isn't a checkout: it has no edgefl/__init__.py" in capsys.readouterr().err


# --- the watch on parts ----------------------------------------------------------------------------------------------


class Seconds:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def inside(module: str, qualified: str, body: Callable[[], None]) -> Callable[[], None]:
    """A function that calls another, with the names of one in ``module``."""
    space = {"__name__": module, "body": body}
    exec(compile("def called():\n    body()\n", module, "exec"), space)
    called: Any = space["called"]
    called.__code__ = called.__code__.replace(co_qualname=qualified)
    return called


def test_time_is_of_the_innermost_function_with_a_part() -> None:
    now = Seconds()
    watch = parts.Watch(now=now)

    def spend(seconds: float) -> Callable[[], None]:
        def look() -> None:
            now.at += seconds
            watch.look(sys._getframe())

        return look

    now.at += 1
    spend(100)()  # of no part: the rest
    copying = inside("edgefl.work.interpreter", "run", spend(4))
    inside("edgefl.simulation.cohort", "Cohort.play", copying)()
    inside("edgefl.models.client", "Client.logits", inside("numpy", "mean", spend(50)))()
    # a model's own code, as torch calls it
    model = inside("edgefl.models.towers.vit", "ViT.forward", spend(16))
    inside("edgefl.work.interpreter", "run", inside("torch.nn.modules.module", "Module._call_impl", model))()
    inside("edgefl.simulation.simulation", "Simulation.checkpoint", inside("edgefl.runs.durable", "put", spend(2)))()
    inside("bench.jobs", "Turns.played", spend(1000))()
    assert watch.seconds == {"copy": 4.0, "train": 16.0, "checkpoint": 2.0, "outside": 1000.0}


def test_a_workers_times_are_in_its_file_now_and_then(tmp_path: Path) -> None:
    now = Seconds()
    watch = parts.Watch(tmp_path / "1.json", now)

    def spend(seconds: float, module: str) -> None:
        now.at += seconds
        inside(module, "run", lambda: watch.look(sys._getframe()))()

    spend(2, "edgefl.data.batches")
    spend(parts.FLUSH / 2, "edgefl.work.interpreter")
    assert json.loads((tmp_path / "1.json").read_text()) == {"batches": 2.0}  # too soon for another
    spend(parts.FLUSH, "edgefl.work.interpreter")
    assert json.loads((tmp_path / "1.json").read_text()) == pytest.approx({"batches": 2.0, "copy": 1.5 * parts.FLUSH})


def test_spans_are_the_times_in_one_part_and_are_written_once(tmp_path: Path) -> None:
    now = Seconds()
    watch = parts.Watch(now=now)

    def spend(seconds: float, module: str) -> None:
        now.at += seconds
        inside(module, "run", lambda: watch.look(sys._getframe()))()

    for seconds, module in (
        (2, "edgefl.data.batches"),
        (1, "edgefl.data.batches"),
        (1, "numpy"),
        (3, "edgefl.data.batches"),
    ):
        spend(seconds, module)
    watch.ended_round()
    watch.write_spans(tmp_path / f"{parts.OWN}{parts.SPANS}")
    spend(1, "edgefl.work.interpreter")
    watch.write_spans(tmp_path / f"{parts.OWN}{parts.SPANS}")
    assert parts.read_spans(tmp_path) == {
        "own": [("batches", 0, 3), ("batches", 4, 7), ("round", 7, 7), ("copy", 7, 8)],
    }


def test_a_round_of_spans_says_how_many_train_and_draws_its_processes() -> None:
    span = parts.Span
    spans = {
        "own": [span("outside", 0, 10), span("round", 10, 10), span("outside", 10, 12), span("copy", 12, 14),
                span("waiting for workers", 14, 30), span("aggregate", 30, 32), span("round", 32, 32)],
        "7": [span("train", 13, 23), span("copy", 23, 25)],
        "8": [span("train", 11, 30), span("waiting for workers", 30, 40)],
    }  # fmt: skip
    (round,) = rounds.rounds_in(spans)
    (whole,) = round["round"]
    assert (whole.begin, whole.end) == (12, 32)  # the run waited for its turn until 12
    assert rounds.training(round)[:3] == [2, 8, 10]
    assert rounds.line(round["own"], whole) == "c" * 10 + "." * 80 + "a" * 10
    assert rounds.line(round["7"], whole) == " " * 5 + "T" * 50 + "c" * 10 + " " * 35
    text = rounds.timeline([round])
    assert "| 2 | 10000.0 | 50.0% |" in text and "worker 2 " + "T" * 90 + "." * 10 in text


WATCHED = """
import json, sys, time
from bench import parts

took = []

def spin(seconds):
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        pass
    took.append(time.perf_counter() - began)

parts.start(sys.argv[1])
for module in ("edgefl.data.x", "edgefl.work.y"):
    space = {"__name__": module, "spin": spin}
    exec("def called(seconds):\\n    spin(seconds)", space)
    space["called"](0.4 if module == "edgefl.data.x" else 0.2)
    sum(range(3_000_000))  # of no part
print(json.dumps([parts.WATCH.seconds, {"batches": sum(took[:1]), "copy": sum(took[1:])}]))
"""


def test_a_process_is_watched_while_it_computes_and_ends_as_it_would(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
    )  # fmt: skip
    assert not done.returncode, done.stderr
    seen, took = json.loads(done.stdout)
    assert seen == {part: pytest.approx(seconds, abs=0.1) for part, seconds in took.items()}


def test_the_longest_prefix_says_the_part() -> None:
    assert parts.part_of("edgefl.work.meter.meter:Meter.step") == "metering"
    assert parts.part_of("edgefl.work.interpreter:run") == "copy"
    assert parts.part_of("edgefl.simulation.learning.training:Training.aggregate") == "aggregate"
    assert parts.part_of("edgefl.simulation.learning.training:Training.send") == "clock and planning"
    assert parts.part_of("edgefl.runs.directory:RunDirectory.append") == "records"
    assert parts.part_of("edgefl.console.display:ProgressDisplay.line") is None
    assert parts.part_of("edgefl.runs.durable:replace_file") is None  # of whoever calls it


def test_the_rooms_are_there() -> None:
    """A part that names a module which is gone would count as the rest."""
    for name in parts.ROOMS:
        module, _, function = name.partition(":")
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part) if part else found


# --- models and loops ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", jobs.JOBS)
def test_the_plain_models_have_the_parameters_that_the_formula_gives(name: str) -> None:
    with torch.device("meta"):
        assert plain.count(plain.plain_model(jobs.JOBS[name])) == jobs.JOBS[name].parameters


def test_the_jobs_are_those_of_the_page() -> None:
    assert jobs.JOBS["vit"].parameters == 214_218 and jobs.JOBS["vit"].steps == 20
    assert jobs.JOBS["big"].parameters == 21_379_210 and jobs.JOBS["big"].steps == 20


def test_the_bare_loop_is_federated_averaging() -> None:
    job = jobs.JOBS["tiny"]
    trainer = bare.Trainer(job)
    base, total = trainer.values(), [torch.zeros_like(p) for p in trainer.parameters]
    torch.manual_seed(5)
    assert trainer.add_changes([2, 0], base, total) == 2 * job.samples
    torch.manual_seed(5)
    expected = [torch.zeros_like(p) for p in base]
    for client in (2, 0):
        with torch.random.fork_rng():
            module = plain.plain_model(job)
        for p, value in zip(module.parameters(), base, strict=True):
            p.data = value.clone()
        x, y = plain.samples_of(job, client)
        order = torch.randperm(len(x))
        for start in range(0, len(x), job.batch):
            rows = order[start : start + job.batch]
            module.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            for p in module.parameters():
                p.data -= jobs.LEARNING_RATE * p.grad
        for sum_, p, value in zip(expected, module.parameters(), base, strict=True):
            sum_ += len(x) * (p.detach() - value)
    for ours, theirs in zip(total, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


EDGEFL_MODELS = """
import json, sys
import torch
from torch.utils.flop_counter import FlopCounterMode
from edgefl import models
from edgefl.setup.compose import compose, scenario_of
from bench import edgefl_parts, jobs, plain

def flops(call):
    with FlopCounterMode(display=False) as counter:
        call().sum().backward()
    return counter.get_total_flops()

found = {}
for name in ("vit", "cnn", "tiny"):
    job = jobs.JOBS[name]
    setup = compose(scenario_of(edgefl_parts.scenario(job, 3, 1), []))
    module = models.build(setup.method.setting.kinds["image"].model)
    x, own = torch.rand(job.batch, 3, 32, 32), plain.plain_model(job)
    found[name] = {
        "parameters": [plain.count(module), plain.count(own)],
        "flops": [flops(lambda: module.logits("image", x)), flops(lambda: own(x))],
    }
print(json.dumps(found))
"""


@pytest.mark.slow(smaller="test_the_plain_models_have_the_parameters_that_the_formula_gives")
def test_the_plain_models_do_what_edgefls_do(tmp_path: Path) -> None:
    # in a process of its own, because the jobs' data sets are registered
    environment = {**os.environ, "PYTHONPATH": f"{TOOLS}{os.pathsep}{TOOLS.parent}", "EDGEFL_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", EDGEFL_MODELS], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert not done.returncode, done.stderr
    for name, found in json.loads(done.stdout).items():
        assert found["parameters"] == [jobs.JOBS[name].parameters] * 2, name
        assert found["flops"][0] == found["flops"][1] > 0, name


# --- turns -----------------------------------------------------------------------------------------------------------

PLAYER = """
import sys, time
from bench.jobs import Turns
turns = Turns()
print("this goes to stderr")
for number in range(3):
    time.sleep(0.1)
    turns.played(7, 2)
if sys.argv[1:]:
    sys.exit("no more: " + sys.argv[1])
"""


def player(folder: Path, *arguments: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    return pairing.Contestant(
        pairing.Started([sys.executable, "-c", PLAYER, *arguments], environment), folder, "player"
    )


def test_a_contestant_plays_a_round_when_it_is_told_to(tmp_path: Path) -> None:
    began = time.perf_counter()
    child = player(tmp_path)
    try:
        said = child.start()
        assert (said["round"], said["parameters"], said["clients"]) == (1, 7, 2)
        time.sleep(0.3)  # it waits meanwhile
        assert child.turn() >= 0.1
        child.turn(compared=False)
        outcome = child.end()
    finally:
        child.kill()
    assert len(outcome.rounds) == len(outcome.processor) == 1
    assert outcome.pss > 1e6
    assert outcome.whole >= outcome.first + 0.2 and outcome.first >= 0.1
    assert outcome.whole <= time.perf_counter() - began - 0.3


def test_a_contestant_that_fails_says_why(tmp_path: Path) -> None:
    child = player(tmp_path, "the data are gone")
    try:
        child.start()
        child.turn()
        child.turn()
        with pytest.raises(pairing.Failed, match="no more: the data are gone"):
            child.end()
    finally:
        child.kill()
    broken = pairing.Contestant(pairing.Started([sys.executable, "-c", "1 / 0"], os.environ), tmp_path, "broken")
    try:
        with pytest.raises(pairing.Failed, match="ZeroDivisionError"):
            broken.start()
    finally:
        broken.kill()


def test_what_cant_be_installed_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(pairing.Failed, match="it can't be installed: ") as caught:
        contestants._run([sys.executable, "-c", "import sys; sys.exit('ERROR: no such package\\nmore')"], os.environ)
    assert str(caught.value) == "it can't be installed: ERROR: no such package"


# --- the tools -------------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_a_round_is_held_against_its_loops_and_its_aim")
def test_peers_prints_its_table(tmp_path: Path) -> None:
    command = [
        sys.executable, str(TOOLS / "bench.py"), "peers", "--jobs", "tiny", "--contestants", "bare-1,edgefl-1",
        "--rounds", "2", "--out", str(tmp_path / "measuring.json"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    lines = [line for line in done.stdout.split("\n") if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in lines] == [
        "contestant", "---", "bare loop, one process", "edgefl, inline",
    ]  # fmt: skip
    found = json.loads((tmp_path / "measuring.json").read_text())["jobs"]["tiny"]
    assert found["left_out"] == {} and found["turns"] == 2
    edgefl = found["figures"]["edgefl-1"]
    assert edgefl["to_bare-1"]["count"] == 2 and edgefl["to_bare-1"]["median"] > 0
    assert edgefl["whole_seconds"]["median"] > edgefl["first_seconds"]["median"] > 0
    assert edgefl["pss_bytes"] > 5e7


@pytest.mark.slow(smaller="test_time_is_of_the_innermost_function_with_a_part")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_rounds_finds_every_part_of_a_round(tmp_path: Path, workers: str) -> None:
    command = [
        sys.executable, str(TOOLS / "bench.py"), "rounds", "--jobs", "tiny", "--workers", workers, "--rounds", "8",
        "--out", str(tmp_path / "parts.json"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    lines = [line.split("|")[1].strip() for line in done.stdout.split("\n") if line.startswith("|")]
    assert lines == [
        "part", "---", *parts.PARTS, "the rest", "the round, with clocks", "the round, without",
        *(["processes that train", "---", "0", "1", "2"] if workers == "2" else []),
    ]  # fmt: skip
    assert ("\nworker 2 " in done.stdout) == (workers == "2")
    found = json.loads((tmp_path / "parts.json").read_text())["tiny"][workers]
    for own, far, whole in zip(found["own"], found["workers"], found["clocked"], strict=True):
        assert sum(own.values()) == pytest.approx(whole)
        assert own["the rest"] < 0.5 * whole and set(far) <= set(parts.PARTS)
    # a part of less than two milliseconds isn't seen in every round
    trained = found["workers" if workers == "2" else "own"]
    for part, where in (("train", trained), ("copy", trained), ("clock and planning", found["own"])):
        assert sum(each.get(part, 0.0) for each in where) > 0, part


@pytest.mark.parametrize("case", clock.CASES)
def test_a_case_of_the_clock_is_a_scenario_that_trains_nothing(case: str) -> None:
    _, changes = clock.CASES[case]
    scenario = load("million", [f"{path}={json.dumps(value)}" for path, value in changes.items()])
    assert scenario.training.mode == "none"


@pytest.mark.slow(smaller="test_a_case_of_the_clock_is_a_scenario_that_trains_nothing")
def test_the_clock_is_timed_in_both_checkouts(tmp_path: Path) -> None:
    found = tmp_path / "rates.json"
    command = [
        sys.executable, str(TOOLS / "bench.py"), "clock", "--only", "buffered", "--turns", "1",
        "--against", str(TOOLS.parent), "--out", str(found),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    assert rows[0] == ["client-rounds/s", "this checkout", "the version before", "ratio"]
    (ours,), (theirs,) = json.loads(found.read_text())["buffered"]
    assert rows[2:] == [["buffered", f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"]]
