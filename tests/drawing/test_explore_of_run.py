"""The fleet of a report: verdicts are those of the run, and those of other budgets are what sweep says of them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from visited_page import settle

import edgefl
from edgefl.drawing.charts import records_of
from edgefl.drawing.sliders.of_run import sliders_of_run
from edgefl.runs import Run

Tiny = Callable[..., dict[str, Any]]

CLIENTS = """([record, set]) => {
  const explorer = new edgeflVerdicts.Explorer(record), judged = explorer.judge({cell: 0, set});
  const rows = Array.from(judged.cell.fleet.counts, (_, row) => row);
  return judged.turns.map((turn, t) => ({stage: turn.stage, clients: rows.map((row) => {
    const {eligible, binding, margins, memory_limit} = explorer.client(judged, row, t);
    const texts = Object.fromEntries(Object.entries(margins).map(([name, value]) => [name, String(value)]));
    return {eligible, binding, memory_limit, margins: texts};
  })}));
}"""


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two stages; some memory budgets are the owner's, others the device's word; a deadline."""
    scenario = tiny(
        method="fedavg", schedule={"name": "layerwise", "stages": 2, "rounds": 4}, training="none",
        fleet={"devices": {"raspberry-pi-3b-plus": 3, "phone-entry": 4}, "links": {"wifi-5": 4, "lte": 3},
               "budgets": {"memory": {"400 kB..1.2 MB": 5, "100 GB": 2}, "energy_per_round": "0.05..20 J"}},
        round={"cohort": 1.0, "deadline": "40 s"},
    )  # fmt: skip
    return edgefl.run(scenario, out=tmp_path_factory.mktemp("explored") / "run")


@pytest.fixture(scope="module")
def page(run: Run, browser: Any) -> Any:
    """The report in Chromium."""
    path = Path(edgefl.report(run).file)
    opened = browser.new_page(viewport={"width": 360, "height": 800})
    opened.said = []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.goto(path.as_uri())
    opened.wait_for_selector("html[data-ready]")
    yield opened
    assert not opened.said
    opened.close()


def test_verdicts_are_those_of_the_run(run: Run, page: Any) -> None:
    record = json.loads(page.locator("#record").text_content())
    told = page.evaluate(CLIENTS, [record, {}])
    written = list(run.records("eligibility"))
    assert {v["eligible"] for v in written} == {True, False}
    assert {v["memory_limit"] for v in written} == {"owner", "device"}
    for turn in told:
        last = {v["client"]: v for v in written if v["stage"] == turn["stage"]}
        for client, said in enumerate(turn["clients"]):
            was = last[client]
            assert said["eligible"] == was["eligible"] and said["binding"] == was["binding"]
            assert said["memory_limit"] == was["memory_limit"]
            for name, margin in was["margins"].items():
                assert float(said["margins"][name]) == pytest.approx(inf if margin is None else margin, rel=1e-9)
    fits = min(sum(each["eligible"] for each in turn["clients"]) for turn in told)
    assert page.locator("[data-part=answer]").inner_text().startswith(f"{fits} of 7 clients can train")


@pytest.mark.parametrize(
    "moved", [{"memory": "700 kB"}, {"deadline": "0.3 s"}, {"joules": "1 J", "memory": "1 MB"}, {"share": "30 %"}]
)
def test_other_budgets_do_what_sweep_says(page: Any, moved: dict[str, str]) -> None:
    page.locator("[data-part=reset]").click()
    settle(page)
    page.locator(".more").evaluate("(more) => { more.open = true }")
    for name, text in moved.items():
        page.locator(f"#explore-{name}-text").fill(text)
        page.locator(f"#explore-{name}-text").press("Enter")
        settle(page)  # it is drawn in the next frame, which would take back what is typed meanwhile
    given, *options = shlex.split(page.locator("[data-part=command]").text_content())[2:]
    assert options[0::2] == ["--set"] * len(moved)
    [row] = edgefl.sweep(given, overrides=options[1::2]).to_data()["rows"]
    hardest = min(row["stages"], key=lambda stage: stage["eligible"])
    answer = page.locator("[data-part=answer]").inner_text()
    assert answer.startswith(f"{hardest['eligible'] or 'None'} of 7 clients can train")
    told = {name: int(n) for name, n in re.findall(r"(memory|energy|time|the deadline) (?:leaves )?(\d+)", answer)}
    nouns = {"memory": "memory", "joules": "energy", "seconds": "the deadline" if "deadline" in moved else "time"}
    assert told == {nouns[name]: n for name, n in hardest["refused_by"].items()}


def test_a_run_with_energy_for_all_rounds_keeps_its_picture(tiny: Tiny, tmp_path: Path) -> None:
    fleet = {"devices": {"phone-entry": 7}, "budgets": {"energy_total": "2 J", "memory": "1 GB"}}
    run = edgefl.run(tiny(training="none", fleet=fleet), out=tmp_path / "run")
    assert sliders_of_run(run, {"": records_of(run)}) is None
    text = Path(edgefl.report(run).file).read_text(encoding="utf-8")
    assert 'data-figure="fleet"' in text and 'id="explore"' not in text


@pytest.mark.slow(smaller="test_verdicts_are_those_of_the_run")
def test_a_comparison_has_its_runs_as_choices(tiny: Tiny, browser: Any, tmp_path: Path) -> None:
    schedules = [{"name": "end-to-end", "rounds": 2}, {"name": "layerwise", "stages": 2, "rounds": 2}]
    fleet = {"devices": {"phone-entry": 7}, "budgets": {"memory": "400 kB..1.2 MB"}}
    compare = {"schedule": schedules, "training.batch": [8, 32]}
    run = edgefl.run(tiny(training={"mode": "none"}, fleet=fleet, compare=compare), out=tmp_path / "runs")
    page = browser.new_page()
    page.goto(Path(edgefl.report(run).file).as_uri())
    seen = set()
    for s, schedule in enumerate(schedules):
        for b, batch in enumerate(compare["training.batch"]):
            for axis, choice in ((0, s), (1, b)):
                page.locator(f"#explore fieldset:nth-child({axis + 1}) input").nth(choice).check(force=True)
            settle(page)
            label = next(each for each in run.runs if each.startswith(schedule["name"]) and each.endswith(str(batch)))
            judged: dict[int, int] = {}
            for verdict in run.runs[label].records("eligibility"):
                judged[verdict["stage"]] = judged.get(verdict["stage"], 0) + verdict["eligible"]
            answer = page.locator("[data-part=answer]").inner_text()
            fits = min(judged.values())
            assert answer.startswith("All 7" if fits == 7 else f"{fits or 'None'} of 7")
            seen.add(answer)
    assert len(seen) > 1
    # one run fewer, and there is no such view: each run keeps its picture
    shutil.rmtree(next(iter(run.runs.values())).path)
    text = Path(edgefl.report(run, tmp_path / "fewer.html").file).read_text(encoding="utf-8")
    assert 'id="explore"' not in text and text.count('data-figure="fleet"') == 3
    page.close()
