"""``check_part``: a part that draws from no seed, or forgets where it was, is found; edgefl's own parts are kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl import registry
from edgefl.errors import ScenarioError, UnknownName
from edgefl.testing import check_part
from edgefl.testing.findings import CheckRule, Findings, HangWatch, Hung, hang_location
from edgefl.testing.played import _check_priced

PARTS = '''
import random
from typing import Literal

import edgefl
from edgefl.schedules import PARTS, Schedule, Stage
from edgefl.simulation import Selection
from edgefl.simulation.policies import Synchronous
from edgefl.simulation.selection import Chosen


def two_stages(first, rounds, blocks):
    whole, zero = dict(blocks), dict.fromkeys(blocks, 0)
    frozen = Stage(1, depth=whole, first=whole, parts=("norm", "rep", "head"), rounds=first)
    return frozen, Stage(2, depth=whole, first=zero, parts=PARTS, rounds=rounds - first)


@edgefl.register("schedule", "dice")
class Dice(Schedule):
    """How long the first stage lasts is drawn from no seed."""

    class Options(Schedule.Options):
        name: Literal["dice"] = "dice"

    def __init__(self, options, blocks):
        rounds = options.rounds or 4
        super().__init__(two_stages(random.randrange(1, rounds), rounds, blocks))


@edgefl.register("schedule", "sound")
class Sound(Schedule):
    class Options(Schedule.Options):
        name: Literal["sound"] = "sound"

    def __init__(self, options, blocks):
        super().__init__(two_stages(2, options.rounds or 4, blocks))


class Ready(Selection):
    def order(self, clients):
        return clients

    def pick(self, share):
        ready = share.clients[share.candidates.ready(share.clients)]
        return Chosen(self.order(ready)[: share.count], len(share.clients), len(share.clients) - len(ready))


@edgefl.register("selection", "hashed")
class Hashed(Ready):
    """Clients in the order of the hashes of their names."""

    class Options(Selection.Options):
        name: Literal["hashed"] = "hashed"

    def order(self, clients):
        return clients[sorted(range(len(clients)), key=lambda i: hash(f"client {clients[i]}"))]


@edgefl.register("selection", "forgetful")
class Forgetful(Ready):
    """Takes turns, and doesn't write down whose turn it is."""

    class Options(Selection.Options):
        name: Literal["forgetful"] = "forgetful"

    turn = 0

    def __init__(self, options, section, seed):
        super().__init__(options, section, seed)
        self.turn = 0

    def pick(self, share):
        chosen = super().pick(share)
        self.turn += 1
        return chosen

    def order(self, clients):
        return clients[[(i + self.turn) % len(clients) for i in range(len(clients))]]


@edgefl.register("round policy", "half")
class Half(Synchronous):
    def updates_needed(self, cohort, asked):
        return -(-asked // 2)
'''


@pytest.fixture
def plug_in(tmp_path: Path) -> Iterator[Path]:
    (path := tmp_path / "parts.py").write_text(PARTS)
    registry.load_plug_in(path)
    yield path
    registry.unload_plug_ins()


@pytest.mark.slow(smaller="test_a_rule_that_a_run_breaks_is_told_with_its_line")
@pytest.mark.parametrize(
    ("kind", "name", "rules"),
    [
        ("selection", "hashed", {CheckRule.REPEATS}),
        ("selection", "forgetful", {CheckRule.RESUMES}),
        ("policy", "half", set()),
        ("selection", "oort", set()),
        ("aggregation", "median", set()),
    ],
)
def test_runs_with_a_part(plug_in: Path, kind: str, name: str, rules: set[str]) -> None:
    report = check_part(kind, name, kinds=["image"])
    assert {failure.partition(":")[0] for failure in report.failures} == rules, str(report)
    assert {CheckRule.RUNS, CheckRule.PRICED, CheckRule.RESUMES, CheckRule.REPEATS} <= report.checks.keys()


@pytest.mark.slow(smaller="test_a_rule_that_a_run_breaks_is_told_with_its_line")
def test_a_schedule_that_draws_from_no_seed_is_found_and_a_sound_one_isnt(plug_in: Path) -> None:
    dice = check_part("schedule", "dice", kinds=["image"])
    assert not dice.ok and any(
        f.startswith((CheckRule.REPEATS, CheckRule.RESUMES)) and " in the " in f for f in dice.failures
    ), str(dice)
    sound = check_part("schedule", "sound", kinds=["image"])
    assert sound.ok, str(sound)


@pytest.mark.slow(smaller="test_unknown_parts_and_options_are_named")
def test_the_fixture_fails_with_what_differs(plug_in: Path, tmp_path: Path) -> None:
    """In a project of a user, whose tests import the file with the parts."""
    (tmp_path / "conftest.py").write_text("from edgefl.testing import edgefl_part\n")
    (tmp_path / "my_parts.py").write_text(plug_in.read_text())
    (tmp_path / "test_parts.py").write_text(
        "import my_parts\n\n\n"
        "def test_oort(edgefl_part):\n    assert edgefl_part('selection', 'oort', kinds=['image']).ok\n\n\n"
        "def test_hashed(edgefl_part):\n    edgefl_part('selection', 'hashed', kinds=['image'])\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_parts.py"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert told.returncode == 1 and "1 failed, 1 passed" in told.stdout, told.stdout
    assert f"- {CheckRule.REPEATS}: " in told.stdout and " in the first run, " in told.stdout
    assert "Traceback" not in told.stdout and "fixture.py" not in told.stdout


def test_only_the_fixture_imports_pytest() -> None:
    code = "import sys; from edgefl.testing import check_part; print('pytest' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_unknown_parts_and_options_are_named() -> None:
    with pytest.raises(
        UnknownName, match="unknown sort of part that can be checked 'scheduel'; did you mean 'schedule'"
    ):
        check_part("scheduel", "layerwise")
    with pytest.raises(UnknownName, match="unknown selection 'orot'; did you mean 'oort'"):
        check_part("selection", "orot")
    with pytest.raises(ScenarioError, match="round.selection"):
        check_part("selection", "oort", explor=3)


def test_a_rule_that_a_run_breaks_is_told_with_its_line(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    whole = edgefl.run(
        tiny(training={"mode": "none"}, schedule={"name": "end-to-end", "rounds": 1}), out=tmp_path / "run"
    )
    path = whole.path / "rounds.jsonl"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "finished": record["finished"] + 1}) + "\n")
    findings = Findings()
    _check_priced(findings, edgefl.read_run(whole.path), "here")
    (told,) = [failure for failure in findings.failures if "by the clients" in failure]
    first = json.loads(told[told.index("{") :])
    assert first["where"].endswith("rounds.jsonl:1") and first["values"]["finished"] == record["finished"] + 1


def test_a_hang_is_where_the_code_ran_and_not_in_the_watch() -> None:
    with pytest.raises(Hung) as caught, HangWatch(0.05).watching():
        while True:
            pass
    assert hang_location(caught.value, None).startswith(f"{__file__}:")
