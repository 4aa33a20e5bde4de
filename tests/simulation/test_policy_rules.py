"""A policy of one's own that breaks a rule of rounds is told so in one line: in a run, and in ``check_part``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
import yaml

import edgefl
from edgefl import registry
from edgefl.console.app import main
from edgefl.errors import PluginError
from edgefl.registry.registered import PARTS
from edgefl.simulation import Policy
from edgefl.simulation.clock import Steps
from edgefl.testing import check_part
from edgefl.testing.findings import CheckRule

SECTIONS: dict[str, Any] = {
    "data": {"source": "glyphs", "clients": {"image": 6}, "samples": 24, "validation": 20, "test": 20},
    "schedule": {"name": "end-to-end", "rounds": 2},
    "training": {"mode": "none", "batch": 8},
    "round": {"cohort": 2, "policy": "wrong", "patience": "1 h"},
}
COHORT = "updates = yield from server.play_cohort(server.choose())"
OVERLAPPING = "overlapping = True\ndef updates_needed(self, cohort, asked):\n    return 2\n"
"""Of a policy whose clients land one by one."""
USES = "server.aggregate() takes each update that server.receive() or play_cohort() returned in this round once"

WRONG: dict[str, tuple[str, str, str]] = {
    # what play does, what is told of it, and what the class has beside play
    "returns its outcome": ("return 'completed'", "returned 'completed', not a generator: play is a SimPy process", ""),
    "returns nothing": ("server.choose()", "returned None, not a generator: play is a SimPy process", ""),
    "yields a number": ("yield 3", "yielded 3, which is no event: what takes time is written `yield from server.", ""),
    "yields nothing": ("yield", "yielded None, which is no event", ""),
    "yields a process": (
        "updates = yield server.play_cohort(server.choose())",
        "yielded <generator object RoundServer.play_cohort at",
        "",
    ),
    "waits for ever": (
        "while True:\n    yield from server.pass_until(server.now + 1)",
        "waited 1000 times in a row, until T, while no client was sent off or received and nothing aggregated: "
        "a round ends soon after round.patience (T)",
        "",
    ),
    "waits for ever and never receives": (
        "server.fill()\nwhile True:\n    yield from server.pass_until(server.now + 1)",
        "waited 1000 times in a row, until T, while no client",
        OVERLAPPING,
    ),
    "stands still": (
        "server.fill()\nwhile True:\n    yield server.run.env.timeout(0)",
        "waited 1000 times in a row, until T, while no client",
        OVERLAPPING,
    ),
    "sends cohorts for ever": (
        f"while True:\n    {COHORT}\n    yield from server.pass_until(server.now + 3600)",
        "sent off 202 clients for 2 places after T: a round ends soon after round.patience (T)",
        "",
    ),
    "aggregates for ever": (
        "server.fill()\n"
        "while flight := (yield from server.next_landed(2)):\n"
        "    if (update := server.receive(flight)) is not None:\n"
        "        server.aggregate([update])\n"
        "    server.landed = 0\n"
        "    yield from server.pass_until(server.now + 3600)\n"
        "    server.fill()\n",
        "sent off 201 clients for 2 places after T",
        OVERLAPPING,
    ),
    "waits for what nobody triggers": (
        "yield server.run.env.event()",
        "waits for an event that nothing triggers: nobody is under way, and no time is set",
        "",
    ),
    "waits for the end of time": (
        "yield from server.pass_until(self.over(server.now))",
        "lets time pass until inf: server.pass_until() takes a finite virtual time",
        "",
    ),
    "aggregates an update twice": (
        f"{COHORT}\nserver.aggregate([*updates, updates[0]])\nreturn 'completed'",
        f"aggregated the update of client N, which isn't there: {USES}",
        "",
    ),
    "aggregates twice in a round": (
        f"{COHORT}\nserver.aggregate(updates)\nserver.aggregate(updates)\nreturn 'completed'",
        f"aggregated the update of client N, which isn't there: {USES}",
        "",
    ),
    "aggregates again in the next round": (
        "server.fill()\n"
        "update = server.receive((yield from server.next_landed(2)))\n"
        "server.aggregate([*self.before, update])\n"
        "self.before.append(update)\n"
        "return 'completed'",
        f"aggregated the update of client N, which isn't there: {USES}",
        OVERLAPPING + "before = []",
    ),
    "aggregates a part of a cohort": (
        f"{COHORT}\nserver.aggregate(updates[:1])\nreturn 'completed'",
        "aggregated 1 of 2 updates of a cohort: they are added up as they arrive, so server.aggregate() takes all that",
        "",
    ),
    "aggregates two cohorts together": (
        f"first = yield from server.play_cohort(server.choose())\n{COHORT}\nserver.aggregate([*first, *updates])",
        f"aggregated the update of client N, which isn't there: {USES}",
        "",
    ),
    "aggregates an update, not a list": (
        "server.fill()\nserver.aggregate(server.receive((yield from server.next_landed(2))))",
        f"aggregated N, which isn't there: {USES}",
        OVERLAPPING,
    ),
    "aggregates no update": (
        f"{COHORT}\nserver.aggregate([])\nreturn 'completed'",
        "aggregated no update: server.aggregate() takes one or more",
        "",
    ),
    "receives a client twice": (
        "server.fill()\nflight = yield from server.next_landed(2)\nserver.receive(flight)\nserver.receive(flight)",
        "received a client twice: server.receive() takes each client that server.next_landed() returned once",
        OVERLAPPING,
    ),
    "receives nobody": ("yield server.receive(None)", "received None: server.receive() takes each client", OVERLAPPING),
    "doesn't receive a client": (
        "server.fill()\n"
        "yield from server.next_landed(2)\n"
        "server.aggregate([server.receive((yield from server.next_landed(2)))])\n"
        "return 'completed'",
        "didn't receive 1 of the clients that server.next_landed() returned: each goes to server.receive()",
        OVERLAPPING,
    ),
    "completes without an update": (
        f"{COHORT}\nreturn 'completed'",
        "returned 'completed' and aggregated nothing: a completed round calls server.aggregate() or server.finish()",
        "",
    ),
    "has no outcome": (
        f"{COHORT}\nserver.aggregate(updates)",
        "returned None, not the round's outcome: completed, below quorum, nobody eligible, nobody available",
        "",
    ),
    "has an unknown outcome": (
        f"{COHORT}\nserver.aggregate(updates)\nreturn 'done'",
        "returned 'done', not the round's outcome: completed, below quorum",
        "",
    ),
    "isn't overlapping": ("server.fill()\nyield", "sends clients off one by one and isn't `overlapping = True`", ""),
}


QUICK = ("yields a number", "waits for ever", "aggregates twice in a round", "completes without an update")
"""Of the cases that ``check_part`` finds."""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    registry.unload_plug_ins()
    PARTS.clear()
    registry.forget()


def plug_in(folder: Path, play: str, more: str = "") -> Path:
    """A file that registers a policy ``wrong``."""
    body = more + "\ndef play(self, server):\n" + indent(dedent(play), "    ")
    file = folder / "my_policies.py"
    file.write_text(
        "import edgefl\nfrom edgefl.simulation import Policy\n\n\n"
        f"@edgefl.register('round policy', 'wrong')\nclass Wrong(Policy):\n{indent(body, '    ')}\n"
    )
    return file


def line(file: Path, told: str) -> str:
    """The beginning of what the user reads, as a pattern; ``N`` is a number of a client, ``T`` a time."""
    begins = f"the round policy 'wrong' of the plug-in my_policies.py ({file}): Wrong.play() {told}"
    return re.sub(r"\bT\b", r"[0-9.]+ (min|h|s)", re.sub(r"\bN\b", r"\\d+", re.escape(begins)))


@pytest.mark.parametrize("case", WRONG)
def test_a_run_tells_what_a_policy_does_wrong(tiny: Callable[..., dict[str, Any]], tmp_path: Path, case: str) -> None:
    play, told, more = WRONG[case]
    registry.load_plug_in(file := plug_in(tmp_path, play, more))
    with pytest.raises(PluginError) as caught:
        edgefl.run(tiny(**SECTIONS), out=tmp_path / "run")
    assert re.match(line(file, told), str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in WRONG]
)
def test_the_check_finds_what_a_policy_does_wrong(tmp_path: Path, case: str) -> None:
    play, told, more = WRONG[case]
    registry.load_plug_in(file := plug_in(tmp_path, play, more))
    report = check_part("policy", "wrong", kinds=["image"])
    (failure,) = report.failures
    rule, _, found = failure.partition(": check: ")
    assert rule == CheckRule.RUNS and re.match(line(file, told), found), failure


@pytest.mark.slow(smaller="test_the_check_finds_what_a_policy_does_wrong")
def test_a_policy_that_loops_without_an_event_is_found_by_the_checks_time_limit(tmp_path: Path) -> None:
    registry.load_plug_in(file := plug_in(tmp_path, "while True:\n    pass\nyield"))
    (failure,) = check_part("policy", "wrong", kinds=["image"], hang_after=4).failures
    where = rf"the plug-in my_policies.py \({re.escape(str(file))}:[89], in Wrong.play\)"
    assert re.search(f"no round ended for 4 s; it hung in {where}$", failure), failure


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("class Wrong(Policy):\n    pass\n", "edgefl_plug_in_my_policies:Wrong doesn't define play()"),
        (
            "class Wrong(Policy):\n    play = 3\n",
            "_my_policies:Wrong has play = 3, which can't be called",
        ),
        (
            "class Wrong(Policy):\n    def play(self):\n        yield\n",
            "has play(self) in line 5 of my_policies.py, which is called with (self, server)",
        ),
        (
            "class Wrong:\n    Options = Policy.Options\n",
            "has no at_once, holds, over, overlapping, play, size",
        ),
    ],
)
def test_a_policy_without_play_isnt_registered(tmp_path: Path, body: str, told: str) -> None:
    """Neither a run nor a check begins: the command ends with the line and 2."""
    file = tmp_path / "my_policies.py"
    file.write_text(
        f"import edgefl\nfrom edgefl.simulation import Policy\n@edgefl.register('round policy', 'wrong')\n{body}"
    )
    with pytest.raises(PluginError, match=re.escape("the round policy 'wrong' can't be registered: ")) as caught:
        registry.load_plug_in(file)
    assert told in str(caught.value) and str(file) in str(caught.value) and caught.value.exit_code == 2


def test_a_run_ends_with_one_line(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play, told, more = WRONG["has no outcome"]
    file, scenario = plug_in(tmp_path, play, more), tmp_path / "wrong.yaml"
    scenario.write_text(yaml.safe_dump({"edgefl": 1, **tiny(**SECTIONS)}))
    with pytest.raises(SystemExit) as end:
        main(["run", str(scenario), "-o", str(tmp_path / "run"), "--plugin", str(file)])
    shown = capsys.readouterr()
    found = [text for text in (shown.out + shown.err).splitlines() if re.search(line(file, told), text)]
    assert end.value.code == 2 and len(found) == 1, shown


class Waits(Policy):
    """An honest policy that waits while others would ask: it looks once a second, and sends a cohort at each hour."""

    overlapping = True

    def updates_needed(self, cohort: int, asked: int) -> int | None:
        return None

    def over(self, started: float) -> float:
        return started + 36 * 3600

    def play(self, server: Any) -> Steps:
        updates: list[Any] = []
        for hour in range(1, 37):
            server.fill()
            while server.now < server.began + hour * 3600:
                yield from server.pass_until(server.now + 1)
            updates += server.receive_all()
        return (yield from server.finish([update for update in updates if update.client != updates[0].client]))


def test_an_honest_policy_breaks_no_rule(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """It waits a hundred thousand times, far beyond ``round.patience``, and leaves updates out."""
    edgefl.register("round policy", "waits")(Waits)
    sections = {**SECTIONS, "round": {**SECTIONS["round"], "policy": "waits"}}
    run = edgefl.run(tiny(**sections), out=tmp_path / "run")
    for record in run.records("rounds"):
        assert (record["outcome"], record["finished"]) == ("completed", 72)
        assert record["virtual_seconds"] == pytest.approx(36 * 3600)


def test_a_client_that_has_landed_meanwhile_isnt_sent_off_twice(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    play = """
    server.fill()
    updates = []
    for _ in range(3):
        yield from server.pass_until(server.now + 3600)
        server.fill()
        if flight := (yield from server.next_landed(2)):
            updates.append(server.receive(flight))
    return (yield from server.finish(updates))
    """
    registry.load_plug_in(plug_in(tmp_path, play.strip("\n"), OVERLAPPING))
    sections = {**SECTIONS, "training": {"batch": 8}}
    run = edgefl.run(tiny(**sections), out=tmp_path / "run")
    for round in (1, 2):
        clients = [c["client"] for c in run.records("clients") if c["round"] == round]
        assert len(clients) == 3
    assert {r["outcome"] for r in run.records("rounds")} == {"completed"}
