"""The page of split training: where the model is cut and over which link are choices, whose seconds hold exchanges."""

from __future__ import annotations

from collections.abc import Callable
from operator import gt
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from sweeps import devices_page, fleet_page
from visited_page import settle

import edgefl
from edgefl.commands.sweep.page.choices import propose_axes
from edgefl.drawing.sliders import page_of
from edgefl.scenario import load

Tiny = Callable[..., dict[str, Any]]

NETWORKS = Path(__file__).parents[4] / "profiles" / "networks"
LINKS = ("3g", "{wifi-5: 2, lte: 2}")
SAMPLES, BATCH, WIDTH = 40, 8, 16
WHOLE = 2
"""The schedule of the whole model: its place after those that cut it after one and two blocks."""

CLIENTS = """(words) => words.map((each) => {
  const [state] = edgeflState.read(record, each), judged = explorer.judge(state), {cell, turns: [turn]} = judged;
  return {changes: explorer.changes(state), clients: Array.from(cell.fleet.counts, (_, row) => {
    const {costs} = explorer.client(judged, row, 0), offer = cell.offers[turn.offer[row]];
    const bytes = [offer.download, offer.upload].map((values) => values[cell.group[cell.spot[row]]]);
    return {memory: costs.memory, seconds: costs.seconds, joules: costs.joules, bytes};
  })};
})"""
"""What each client costs in states of the page, which are given as its addresses."""


def split(tiny: Tiny, **sections: Any) -> dict[str, Any]:
    """A vision transformer of three blocks, of which clients on two devices compute the first."""
    tower = {"tower": "vit", "blocks": 3, "width": WIDTH, "heads": 2, "patch": 8}
    return tiny(
        data={"source": "glyphs", "clients": {"image": 4}, "samples": SAMPLES, "partition": "iid"},
        model={"image": tower},
        schedule={"name": "split", "after": 1, "rounds": 2},
        training={"batch": BATCH},
        fleet={"devices": {"raspberry-pi-4-4gb": 2, "jetson-orin-nano-8gb": 2}, "links": {"wifi-5": 2, "lte": 2}},
        **sections,
    )


def proposed(scenario: dict[str, Any]) -> dict[str, list[Any]]:
    axes = (axis.partition("=") for axis in propose_axes(load(scenario)))
    return {path: yaml.safe_load(f"[{values}]") for path, _, values in axes}


def test_its_choices_are_the_whole_model_cuts_and_links(tiny: Tiny) -> None:
    axes = proposed(split(tiny))
    own = {"name": "split", "after": 1, "server": "per-client", "rounds": 2}
    assert axes["schedule"] == [own, {"name": "end-to-end", "rounds": 2}]
    assert axes["fleet.links"] == [{"wifi-5": 2, "lte": 2}, {"wifi-5": 1.0}, {"lte": 1.0}]
    assert not [axis for axis in propose_axes(load(split(tiny)), "lte") if axis.startswith("fleet.links")]
    deeper = split(tiny)
    deeper["model"]["image"]["blocks"] = 8
    assert [each.get("after") for each in proposed(deeper)["schedule"]] == [1, None, 4, 2]
    deeper["schedule"] = {"name": "end-to-end", "rounds": 2}
    whole = proposed(deeper)
    assert [each.get("after") for each in whole["schedule"] if each["name"] == "split"] == [4, 2, 1]
    assert "fleet.links" not in whole  # without split training, a link changes each schedule's bits alone
    assert all(each["name"] != "split" for each in proposed({**deeper, "method": "fedprox"})["schedule"])


def test_its_devices_are_priced_over_the_link_that_is_chosen(tiny: Tiny) -> None:
    record = devices_page(split(tiny), ["fleet.links=lte,wifi-5"])
    slow, fast = ([each.virtual_seconds for each in cell.answers if each] for cell in record.cells)
    assert record.link == "lte or wifi-5" and len(slow) == len(fast) and all(map(gt, slow, fast))


def test_its_costs_are_those_of_profile_and_of_a_sum_by_hand(tiny: Tiny, browser: Any, tmp_path: Path) -> None:
    schedules = [f"{{name: split, after: {after}, rounds: 2}}" for after in (1, 2)]
    axes = ["schedule=" + ",".join([*schedules, "{name: end-to-end, rounds: 2}"]), f"fleet.links={','.join(LINKS)}"]
    record = fleet_page(split(tiny), axes)
    (path := tmp_path / "page.html").write_text(page_of(record), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.evaluate("""() => {
      window.record = JSON.parse(document.getElementById("record").textContent);
      window.explorer = new edgeflVerdicts.Explorer(record);
    }""")
    words = [
        urlencode({axis.path: axis.choices[at].label for axis, at in zip(record.axes, cell.at, strict=True)})
        for cell in record.cells
    ]
    told, links = page.evaluate(CLIENTS, words), set[str]()
    for cell, each in zip(record.cells, told, strict=True):
        schedule = cell.at[0]
        answer = edgefl.profile(split(tiny), each["changes"], clients=True)
        clients = list(answer.clients or ())
        slowest = told[schedule * len(LINKS)]["clients"]
        trips = 0 if schedule == WHOLE else SAMPLES // BATCH
        moved = (answer.rows[0].serialised_download_bytes, answer.rows[0].serialised_upload_bytes)
        links |= {client.link for client in clients}
        for client, same, over_3g in zip(each["clients"], clients, slowest, strict=True):
            assert client["memory"] == same.peak_memory_bytes
            assert client["seconds"] == same.virtual_seconds
            assert client["joules"] == same.energy_joules
            later = transfer_seconds(same.link, trips, moved) - transfer_seconds(LINKS[0], trips, moved)
            assert client["seconds"] - over_3g["seconds"] == pytest.approx(later, rel=1e-9, abs=1e-9)
            if schedule != WHOLE:
                assert client["bytes"] == bytes_by_hand(blocks=schedule + 1)
    peaks, seconds = ([{c[name] for c in each["clients"]} for each in told] for name in ("memory", "seconds"))
    assert links == {"wifi-5", "lte", "3g"}
    first, second, whole = (peaks[schedule * len(LINKS)] for schedule in range(3))
    assert max(first) < min(second) and max(second) < min(whole)
    assert min(seconds[0]) > max(seconds[WHOLE * len(LINKS)])  # over 3G the whole model takes less time
    page.close()


def bytes_by_hand(blocks: int) -> list[int]:
    """Tensors down and up: embedding and blocks, the tokens or their gradients, and the labels or the loss."""
    tokens, trips = 16 + 1, SAMPLES // BATCH
    embedding = (8 * 8 * WIDTH + WIDTH) + WIDTH + tokens * WIDTH
    half = 4 * (embedding + blocks * (12 * WIDTH**2 + 13 * WIDTH))
    return [half + trips * (4 * BATCH * tokens * WIDTH + beside) for beside in (4, 8 * BATCH)]


def transfer_seconds(link: str, trips: int, moved: tuple[int, int]) -> float:
    """Seconds of all bits, and the latencies of two transfers and of two for each trip."""
    file = NETWORKS / f"{link}.yaml"
    given = yaml.safe_load(file.read_text(encoding="utf-8"))
    number = {name: fact["value"] for name, fact in given.items() if isinstance(fact, dict) and "value" in fact}
    kept = 1 - float(number["loss"].rstrip("% ")) / 100
    amount, unit = number["latency_seconds"].split()
    waits = (2 + 2 * trips) * float(amount) * {"ms": 1e-3, "us": 1e-6, "s": 1.0}[unit]
    rates = [float(number[f"{d}load_bits_per_second"].split()[0]) * 1e6 for d in ("down", "up")]
    return waits + sum(8 * each / (rate * kept) for each, rate in zip(moved, rates, strict=True))


def test_the_table_of_choices_has_what_each_choice_then_shows(tiny: Tiny, browser: Any, tmp_path: Path) -> None:
    record = fleet_page(
        split(tiny), ["schedule={name: split, after: 1, rounds: 2},end-to-end", "fleet.links=wifi-5,lte"]
    )
    (path := tmp_path / "page.html").write_text(page_of(record), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    table = page.locator('[data-part="beside"]')
    page.locator("details", has=table).locator("summary").click()
    settle(page)
    rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert [row[0] for row in rows] == [
        "schedule: split (now)", "schedule: end-to-end", "links: wifi-5 (now)", "links: lte"
    ]  # fmt: skip
    assert rows[0][1:] == rows[2][1:] and rows[0][2] != rows[3][2]
    for place, (axis, choice) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        chips = page.locator("[data-part=choices] fieldset").nth(axis).locator("label")
        chips.nth(choice).click()
        settle(page)
        tiles = [tile.split("\n")[0] for tile in page.locator("[data-part=tiles] dd").all_inner_texts()]
        assert tiles == rows[place][2:]
        chips.nth(0).click()
        settle(page)
    page.close()
