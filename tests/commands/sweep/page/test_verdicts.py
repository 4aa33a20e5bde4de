"""The verdicts of a page whose controls are moved are those of sweep and profile --clients, at exact thresholds too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import inf, nextafter
from random import Random
from typing import Any

import numpy as np
import pytest
from sweeps import fleet_page

import edgefl
from edgefl.commands.sweep.page import shared_rows
from edgefl.devices.budgets import BUDGETS
from edgefl.drawing.sliders import page_of
from edgefl.drawing.sliders.page_data import FleetSliders
from edgefl.planning.eligibility import gate
from edgefl.planning.judge import choose_stages

Tiny = Callable[..., dict[str, Any]]
State = dict[str, Any]

MOVE = """async (states) => {
  const told = [];
  for (const {cell, set} of states) {
    document.querySelectorAll("[data-part=choices] fieldset").forEach((axis, a) => {
      axis.querySelectorAll("input")[record.cells[cell].at[a]].click();
    });
    for (const field of document.querySelectorAll(".limit input[type=text]")) {
      const name = field.closest(".limit").dataset.limit, text = set[name] ?? "";
      const unit = text && text !== "Infinity" && ["memory", "bytes", "bytes_per_day"].includes(name) ? " B" : "";
      field.value = text.replace("Infinity", "unlimited") + unit;
      field.dispatchEvent(new Event("change"));
    }
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    const words = document.getElementById("explore").dataset.state;
    const [state] = edgeflState.read(record, words);
    const texts = Object.fromEntries(Object.entries(state.set).map(([name, value]) => [name, String(value)]));
    told.push({words, cell: state.cell, set: texts, answer: document.querySelector("[data-part=answer]").textContent});
  }
  return told;
}"""
"""Moves the page's controls to each state, and says which state the page then has, and its answer."""

JUDGE = """(all) => all.map((words) => {
  const [state] = edgeflState.read(record, words);
  const judged = explorer.judge(state), {counts} = judged.cell.fleet;
  const texts = (values) => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, String(value)]));
  const clients = Array.from(counts, (_, row) => {
    let worst = null, able = 0, turns = 0;
    judged.turns.forEach((turn, t) => {
      const client = explorer.client(judged, row, t);
      if (client === null) return;
      turns += 1;
      able += client.eligible;
      const nearer = worst === null || client.near < worst.near;
      if (nearer || (client.near === worst.near && client.costs.memory > worst.costs.memory)) worst = client;
    });
    return worst && {...worst, near: String(worst.near), able, turns, costs: texts(worst.costs),
                     budgets: texts(worst.budgets), margins: texts(worst.margins)};
  });
  const ever = counts.reduce((sum, n, i) => sum + n * judged.ever[i], 0);
  return {
    clients, ever, changes: explorer.changes(state), round: explorer.round(judged),
    data: explorer.data(judged, judged.ever), hardest: judged.hardest.stage,
    stages: judged.stages.map(({turns, left_out, ...stage}) => stage),
  };
})"""
"""The verdicts of states of the page; numbers are texts where they may be infinite, which JSON hasn't."""


@pytest.fixture(scope="module")
def scenario(tiny: Tiny) -> dict[str, Any]:
    """Unequal devices, drawn budgets of each kind, a stage that offers several parts."""
    return tiny(
        method="fedavg",
        data={"source": "glyphs", "clients": {"image": 5, "text": 4, "image-text": 4}, "samples": 40,
              "partition": {"dirichlet": 0.3}, "validation": 40, "test": 40},
        fleet={
            "devices": {"raspberry-pi-3b-plus": 3, "raspberry-pi-4-4gb": 5, "jetson-orin-nano-8gb": 5},
            "links": {"wifi-5": 6, "lte": 7},
            "throttling": True,
            "budgets": {"memory": "400 kB..1.2 MB", "energy_per_round": "0.1..20 J", "power": "3..12 W",
                        "energy_total": {"5 J": 6, "unlimited": 7}, "energy_per_day": "4..9 J",
                        "bytes_per_day": "100 kB..2 MB"},
        },
        round={"cohort": 1.0, "deadline": "40 s"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def record(scenario: dict[str, Any]) -> FleetSliders:
    schedules = "end-to-end,{name: layerwise, stages: 2, rounds: 4},{name: elastic, stages: 2, rounds: 2}"
    return fleet_page(scenario, [f"schedule={schedules}", "training.batch=4,8"])


@pytest.fixture(scope="module")
def page(record: FleetSliders, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page in Chromium, with the record and what judges it as the page does."""
    path = tmp_path_factory.mktemp("explored") / "page.html"
    path.write_text(page_of(record), encoding="utf-8")
    opened = browser.new_page()
    opened.set_default_timeout(300_000)
    opened.goto(path.as_uri())
    opened.evaluate("""() => {
      window.record = JSON.parse(document.getElementById("record").textContent);
      window.explorer = new edgeflVerdicts.Explorer(record);
    }""")
    yield opened
    opened.close()


def drawn_states(record: FleetSliders, first: list[dict[str, Any]], count: int) -> list[State]:
    """States in which some budgets are moved: anywhere, to what a client needs exactly, or to just less than that."""
    random, states = Random(5), list[State]()
    whole = {budget.name: budget.whole for budget in record.budgets}

    def amount(budget: Any) -> float:
        if random.random() < 0.1:
            return inf
        if random.random() < 0.3:
            drawn = random.uniform(budget.least / 2, budget.most * 1.5)
            return int(drawn) if budget.whole else drawn
        client = random.choice([client for answer in first for client in answer["clients"] if client])
        exact = float(client["costs"][budget.name])
        return random.choice([exact, exact - 1 if whole[budget.name] else nextafter(exact, 0)])

    while len(states) < count:
        moved = {budget.name: amount(budget) for budget in record.budgets if random.random() < 0.5}
        if random.random() < 0.2:
            moved["share"] = random.uniform(0.2, 1)
            moved.pop("memory", None)
        if random.random() < 0.3:
            moved["deadline"] = random.choice([moved.get("seconds", 1.0), random.uniform(0.1, 30), inf])
        for cap, budget in (("energy_total", "joules"), ("energy_per_day", "joules"), ("bytes_per_day", "bytes")):
            if random.random() < 0.3:
                whole_cap = random.choice([moved.get(budget, 1.0), random.uniform(0.1, 30), inf])
                moved[cap] = whole_cap if budget == "joules" or whole_cap == inf else int(1e5 * whole_cap) + 1
        if all(value > 0 for value in moved.values()):
            set_ = {name: "Infinity" if value == inf else repr(value) for name, value in moved.items()}
            states.append({"cell": len(states) % len(record.cells), "set": set_})
    return states


def close(value: float | None, other: float | None) -> bool:
    return value == other if value is None or other is None else value == pytest.approx(other, rel=1e-9, abs=0)


def test_one_formula_judges_and_chooses_as_the_planner_does_in_1000_cells(page: Any) -> None:
    """Costs at, just above and just below budgets, budgets of 0 and without limit, offers that are equally near."""
    cells, draw = 1000, np.random.default_rng(7)
    budgets = draw.choice([0.0, 1.0, 3.0, 1e9 / 3, inf], (len(BUDGETS), cells))
    budgets[draw.random(budgets.shape) < 0.3] *= draw.random()
    finite = np.where(np.isinf(budgets), 5.0, budgets)
    factors = draw.choice([0.0, 0.5, 0.9, 1.0, 1.0, 1.1], (3, *budgets.shape))
    costs = finite * factors
    exact = draw.random(costs.shape)
    costs = np.where(exact < 0.1, np.nextafter(costs, inf), np.where(exact > 0.9, np.nextafter(costs, 0), costs))
    costs[2][:, :200] = costs[1][:, :200]  # of equally near stages the later one is taken
    allowed = dict(zip(BUDGETS, budgets, strict=True))
    verdicts = [gate(dict(zip(BUDGETS, each, strict=True)), allowed) for each in costs]
    gates, chosen = page.evaluate(
        """([limits, offers]) => {
          const rows = limits[0].map((_, row) => row);
          const gates = offers.map(({costs}) => rows.map((row) => edgeflVerdicts.gate(limits, row, costs, row)));
          const {offer, eligible, binding, near} = edgeflVerdicts.choose(offers, limits, rows, () => true);
          return [gates, [offer, eligible, binding, near].map((values) => Array.from(values))];
        }""",
        [budgets.tolist(), [{"index": i, "stage": i, "costs": each.tolist()} for i, each in enumerate(costs)]],
    )
    for found, same in zip(gates, verdicts, strict=True):
        assert [each["fits"] for each in found] == same.eligible.tolist()
        assert [each["binding"] for each in found] == same.binding.tolist()
        assert [each["near"] for each in found] == same.nearness.tolist()
    offers = {
        i: (lambda rows, each=each: (rows, {name: values[rows] for name, values in zip(BUDGETS, each, strict=True)}))
        for i, each in enumerate(costs)
    }
    choices = choose_stages(offers, allowed)
    assert chosen[:3] == [choices.stage.tolist(), choices.eligible.astype(int).tolist(), choices.binding.tolist()]
    assert chosen[3] == [float(verdicts[stage].nearness[row]) for row, stage in enumerate(choices.stage)]
    assert {0, 1, 2} <= {*choices.stage.tolist()} and 100 < choices.eligible.sum() < 900
    assert {-1, *range(len(BUDGETS))} == {*choices.binding.tolist()}


@pytest.mark.parametrize("count", [18, 200])
def test_counts_budgets_and_margins_are_those_of_sweep_and_of_each_client(
    record: FleetSliders, page: Any, scenario: dict[str, Any], count: int
) -> None:
    asked = [{"cell": cell, "set": {}} for cell in range(len(record.cells))]
    first = page.evaluate(JUDGE, [each["words"] for each in page.evaluate(MOVE, asked)])
    states = [*asked, *drawn_states(record, first, count - len(asked))]
    shown = page.evaluate(MOVE, states)
    refused, exact = set[str](), 0
    for state, seen, told in zip(states, shown, page.evaluate(JUDGE, [each["words"] for each in shown]), strict=True):
        assert seen["cell"] == state["cell"]
        assert {k: float(v) for k, v in seen["set"].items()} == {k: float(v) for k, v in state["set"].items()}
        [row] = edgefl.sweep(scenario, overrides=told["changes"]).to_data()["rows"]
        assert told["ever"] == round(row["eligible_share_ever"] * row["clients"]), state
        assert told["hardest"] == row["hardest_stage"], state
        fits, everyone = round(row["eligible_share_at_hardest_stage"] * row["clients"]), row["clients"]
        counts = f"All {everyone}" if fits == everyone else f"{fits or 'None'} of {everyone}"
        assert seen["answer"].startswith(f"{counts} clients can train"), (state, seen["answer"])
        for name, value in told["round"].items():
            assert close(value, row[name]), (state, name)
        for name, value in told["data"].items():
            assert value == row[name], (state, name)
        for stage, same in zip(told["stages"], row["stages"], strict=True):
            stage["refused_by"] = by_budget(dict(stage["causes"]))
            for name in ("stage", "rounds", "clients", "eligible", "refused_by", "peak_memory_bytes"):
                assert stage[name] == same[name], (state, stage["stage"], name)
            for name in ("round_seconds", "energy_joules", "flops", "download_bytes", "upload_bytes"):
                assert close(stage[name], same[name]), (state, stage["stage"], name)
        each = edgefl.profile(scenario, told["changes"], clients=True).clients
        for client, same in zip(told["clients"], each, strict=True):
            assert client["eligible"] == same.eligible and client["binding"] == same.binding, (state, same.client)
            assert (client["turns"], client["able"]) == (same.stages, same.eligible_stages), (state, same.client)
            assert client["memory_limit"] == same.memory_limit, (state, same.client)
            assert float(client["costs"]["seconds"]) == same.virtual_seconds
            assert float(client["costs"]["joules"]) == same.energy_joules
            if same.binding is not None:
                assert close(float(client["margins"][same.binding]), same.margin), (state, same.client)
                assert close(float(client["budgets"][same.binding]), same.budget), (state, same.client)
                exact += same.margin == 0
                refused |= {same.binding} if not same.eligible else set()
    assert refused == {budget.name for budget in record.budgets} and exact > count / 10


def by_budget(causes: dict[str, int]) -> dict[str, int]:
    """Clients by the budget that refuses them: the deadline is one of seconds."""
    late = causes.pop("deadline", 0)
    return causes | ({"seconds": causes.get("seconds", 0) + late} if late else {})


COUNT = """([text, states]) => {
  const explorer = new edgeflVerdicts.Explorer(JSON.parse(text));
  return states.map(({cell, set}) => {
    const judged = explorer.judge({cell, set: Object.fromEntries(Object.entries(set).map(([k, v]) => [k, Number(v)]))});
    const refused = ({causes}) => causes.reduce((sum, [, clients]) => sum + clients, 0);
    return {
      counts: judged.stages.map((each) => [each.stage, each.eligible, each.clients, each.left_out, refused(each)]),
      data: explorer.data(judged, judged.ever), round: explorer.round(judged),
    };
  });
}"""


def test_in_a_large_fleet_clients_share_rows_and_all_counts_stay(
    tiny: Tiny, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tiny(
        data={"source": "declared", "clients": {"image": 400, "text": 300}, "samples": "40..42",
              "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}},
        fleet={
            "devices": {"raspberry-pi-3b-plus": "50%", "raspberry-pi-4-4gb": "50%"},
            "links": {"wifi-5": "50%", "lte": "50%"},
            "budgets": {"memory": "300 kB..1.2 MB", "energy_total": {"0.1..2 J": "50%", "unlimited": "50%"}},
        },
    )  # fmt: skip
    axes = ["training.batch=4,8", "schedule=end-to-end,{name: layerwise, stages: 2, rounds: 4}"]
    every = fleet_page(scenario, axes)
    monkeypatch.setattr(shared_rows, "MOST_ROWS", 500)
    shared = fleet_page(scenario, axes)
    assert every.fleets[0].rows == 700 and shared.fleets[0].rows < 350
    assert len(str(shared.to_data())) < len(str(every.to_data()))
    clients = [{"costs": {name.name: name.most for name in every.budgets}}]
    states = [{"cell": cell, "set": {}} for cell in range(4)] + drawn_states(every, [{"clients": clients}], 60)
    told, same = (page.evaluate(COUNT, [json.dumps(each.to_data()), states]) for each in (shared, every))
    assert [each["counts"] for each in told] == [each["counts"] for each in same]
    assert [each["data"] for each in told] == [each["data"] for each in same]
    for one, other in zip(told, same, strict=True):
        assert all(close(one["round"][name], value) for name, value in other["round"].items())
    assert len({str(each["counts"]) for each in same}) > 20


def test_what_is_set_goes_before_a_choice_of_the_same_field(scenario: dict[str, Any], page: Any) -> None:
    axes = ["fleet.budgets.memory=500 kB,800 kB", "round.deadline=1 s,null"]
    record = fleet_page(scenario, axes)
    states = [
        {"cell": cell, "set": set_} for cell in range(4) for set_ in ({}, {"memory": "600000"}, {"deadline": "0.5"})
    ]
    changes = page.evaluate(
        """([text, states]) => {
          const explorer = new edgeflVerdicts.Explorer(JSON.parse(text));
          return states.map(({cell, set}) => explorer.changes({cell, set}));
        }""",
        [json.dumps(record.to_data()), states],
    )
    assert changes[:3] == [
        ["fleet.budgets.memory=500 kB", "round.deadline=1 s"],
        ["round.deadline=1 s", "fleet.budgets.memory=600000 B"],
        ["fleet.budgets.memory=500 kB", "round.deadline=0.5 s"],
    ]
    told = page.evaluate(COUNT, [json.dumps(record.to_data()), states])
    for counted, change in zip(told, changes, strict=True):
        [row] = edgefl.sweep(scenario, overrides=change).to_data()["rows"]
        assert [each[1] for each in counted["counts"]] == [stage["eligible"] for stage in row["stages"]]
