"""The page of edgefl sweep --page in Chromium: controls move verdicts, a link keeps them, keys and screen readers can.

Which verdicts are right, tests/commands/sweep/page says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweeps import devices_page, fleet_page
from visited_page import VisitedPage, settle

import edgefl
from edgefl import units
from edgefl.drawing.sliders import page_of
from edgefl.drawing.sliders.page_data import DeviceChoices, FleetSliders
from tests.test_units import AMOUNTS, WORDS

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def scenario(tiny: Tiny) -> dict[str, Any]:
    """Seven clients of three kinds with drawn budgets."""
    return tiny(
        fleet={"devices": {"raspberry-pi-3b-plus": 3, "raspberry-pi-4-4gb": 4}, "links": {"wifi-5": 4, "lte": 3},
               "budgets": {"memory": "400 kB..1.2 MB"}}
    )  # fmt: skip


@pytest.fixture(scope="module")
def record(scenario: dict[str, Any]) -> FleetSliders:
    """Three schedules, one of which can't run, by two batch sizes."""
    schedules = "end-to-end,{name: layerwise, stages: 2, rounds: 2},{name: layerwise, stages: 9, rounds: 9}"
    return fleet_page(scenario, [f"schedule={schedules}", "training.batch=8,32"])


class Visit(VisitedPage):
    """A page of ``edgefl sweep --page``, and its controls."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light", hash_: str = ""):
        super().__init__(browser, path, width, scheme, hash_)
        self.settle()

    def settle(self) -> None:
        settle(self.page)

    @property
    def answer(self) -> str:
        return str(self.page.locator("[data-part=answer]").inner_text())

    @property
    def command(self) -> str:
        return str(self.page.locator("[data-part=command]").text_content())

    def type(self, limit: str, text: str) -> None:
        field = self.page.locator(f"#explore-{limit}-text")
        field.fill(text)
        field.press("Enter")
        self.settle()

    def choose(self, text: str) -> None:
        self.page.locator(".chip", has_text=text).first.locator("input").check(force=True)
        self.settle()


@pytest.fixture
def visit(record: FleetSliders, browser: Any, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """Open the page of the record, or of another; whatever is open at the end is checked."""
    visits: list[Visit] = []

    def opened(given: FleetSliders | DeviceChoices = record, **options: Any) -> Visit:
        path = tmp_path / "page.html"
        path.write_text(page_of(given), encoding="utf-8")
        visits.append(Visit(browser, path, **options))
        return visits[-1]

    yield opened
    for each in visits:
        each.check()
        each.context.close()


def eligible(scenario: dict[str, Any], changes: list[str]) -> tuple[int, int]:
    """Clients that fit in the hardest stage, and all, by sweep."""
    [row] = edgefl.sweep(scenario, overrides=changes).to_data()["rows"]
    return min(stage["eligible"] for stage in row["stages"]), row["clients"]


def sentence(counts: tuple[int, int]) -> str:
    fits, clients = counts
    return f"All {clients} clients can train" if fits == clients else f"{fits or 'None'} of {clients} clients can train"


def test_controls_move_the_answer_and_the_link_keeps_it(
    visit: Callable[..., Visit], scenario: dict[str, Any], record: FleetSliders
) -> None:
    shown = visit()
    assert shown.answer.startswith(sentence(eligible(scenario, [])))
    seen = {shown.answer}
    for set_ in ("600 kB", "0.9 MB", "unlimited"):
        shown.type("memory", set_)
        value = "unlimited" if set_ == "unlimited" else f"{units.BYTES.parse(set_)} B"
        assert shown.answer.startswith(sentence(eligible(scenario, [f"fleet.budgets.memory={value}"])))
        assert f"fleet.budgets.memory={value}" in shown.command.replace("'", "")
        seen.add(shown.answer)
    assert len(seen) > 2
    shown.type("memory", "600 kB")
    shown.choose("layerwise")
    shown.type("deadline", "1 ms")
    late = shown.answer
    assert "the deadline leaves" in late or "the deadline " in late
    # a link keeps it, and back goes one step back
    address = shown.page.url
    again = visit(hash_="#" + address.partition("#")[2])
    assert again.answer == late and again.command == shown.command
    assert again.page.locator("#explore-memory-text").input_value() == "600 kB"
    shown.page.go_back()
    shown.settle()
    assert shown.answer != late and "deadline=" not in shown.page.url
    again.page.locator("[data-part=reset]").click()
    again.settle()
    assert again.answer.startswith(sentence(eligible(scenario, [])))
    assert again.command == f"edgefl sweep {record.given}"


def test_a_share_of_the_device_and_an_amount_are_not_both_set(visit: Callable[..., Visit]) -> None:
    shown = visit()
    shown.type("memory", "1 MiB")
    shown.type("share", "50 %")
    assert "0.5 of device" in shown.command and shown.page.locator("#explore-memory-text").input_value() == ""
    assert shown.answer.startswith("All 7 clients")
    shown.type("memory", "1 B")
    assert "of device" not in shown.command and shown.answer == "None of 7 clients can train; memory leaves 7 out."


@pytest.mark.slow(smaller="test_quantities_are_those_of_edgefl")
def test_what_isnt_a_quantity_is_told_and_changes_nothing(visit: Callable[..., Visit]) -> None:
    shown = visit()
    before = shown.answer
    for text in ("12 apples", "-3 MiB", "0", "MiB"):
        shown.type("memory", text)
        wrong = shown.page.locator("[data-limit=memory] .wrong")
        assert wrong.is_visible() and "48 MiB" in wrong.inner_text() and shown.answer == before
    shown.type("share", "120 %")
    assert shown.page.locator("[data-limit=share] .wrong").is_visible()
    shown.type("memory", "")
    assert not shown.page.locator("[data-limit=memory] .wrong").is_visible()
    strange = visit(hash_="#training.batch=batch%3D32&memory=much&nothing=1")
    assert "memory=much" in strange.page.locator("[data-part=notice]").inner_text()


def test_a_choice_that_cannot_run_is_greyed_with_its_reason(visit: Callable[..., Visit], record: FleetSliders) -> None:
    shown = visit()
    refused = next(cell.refused for cell in record.cells if cell.refused)
    assert shown.page.locator("fieldset input:disabled").count() == 1
    assert str(refused) in shown.page.locator("fieldset .reasons").first.inner_text()
    # a link to it says so too
    label = record.axes[0].choices[2].label
    shown.page.evaluate("(words) => { location.hash = words }", f"schedule={label}")
    shown.page.wait_for_function("document.querySelector('[data-part=results]').hidden")
    assert str(refused) in shown.page.locator("[data-part=notice]").inner_text()
    shown.choose("end-to-end")
    assert shown.page.locator("[data-part=results]").is_visible()


def test_keys_move_sliders_and_go_from_client_to_client(visit: Callable[..., Visit]) -> None:
    shown = visit(scheme="dark")
    page = shown.page
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    slider = page.locator("#explore-memory")
    slider.focus()
    page.keyboard.press("ArrowRight")
    shown.settle()
    assert slider.get_attribute("aria-valuetext") == page.locator("#explore-memory-text").input_value() != ""
    assert "memory leaves 7 out" in shown.answer
    page.keyboard.press("End")
    shown.settle()
    assert slider.get_attribute("aria-valuetext") == "unlimited" and shown.answer.startswith("All 7")
    page.keyboard.press("Home")
    shown.settle()
    assert str(slider.get_attribute("aria-valuetext")).startswith("as in the scenario")
    picture, tip = page.locator(".picture canvas").last, page.locator(".tip")
    picture.focus()
    seen = set()
    for _ in range(7):
        page.keyboard.press("ArrowRight")
        assert tip.is_visible()
        seen.add(tip.locator("strong").inner_text().partition(":")[0])
    assert seen == {f"Client {i}" for i in range(7)}
    page.keyboard.press("Escape")
    assert not tip.is_visible()


@pytest.mark.slow(smaller="test_controls_move_the_answer_and_the_link_keeps_it")
def test_the_table_has_every_client(visit: Callable[..., Visit], scenario: dict[str, Any]) -> None:
    shown = visit()
    shown.type("memory", "700 kB")
    page = shown.page
    wanted = edgefl.profile(scenario, ["fleet.budgets.memory=700000 B"], clients=True).clients
    assert {each.eligible for each in wanted} == {True, False}
    table = page.locator("[data-part=clients] table")
    page.locator("[data-part=clients] summary").click()
    table.locator("tbody tr").last.wait_for()
    assert table.locator("tbody tr").count() == 7
    words = table.inner_text()
    assert words.count("left out by memory") == sum(not each.eligible for each in wanted)
    assert "too much" in words and "left" in words
    # a verdict is hidden and shown by its button
    button = page.locator("[data-part=legend] button:visible").last
    button.click()
    shown.settle()
    assert button.get_attribute("aria-pressed") == "false"
    assert table.locator("tbody tr").count() == sum(each.eligible for each in wanted)
    # what a screen reader is given stands in every table
    for summary in page.locator(".results summary").all()[1:]:
        summary.click()
    shown.settle()
    for each in page.locator(".results table:visible").all():
        heads = each.locator("thead th[scope=col]").count()
        assert heads == each.locator("tbody tr").first.locator("th, td").count() > 1


@pytest.mark.slow(smaller="test_controls_move_the_answer_and_the_link_keeps_it")
def test_another_stage_is_looked_at(visit: Callable[..., Visit], record: FleetSliders) -> None:
    shown = visit()
    shown.choose("layerwise")
    shown.type("memory", "500 kB")
    page, answer = shown.page, shown.answer
    legends, stages = set(), page.locator("select[data-part=stage]")
    for stage in ("1", "2"):
        stages.select_option(stage)
        shown.settle()
        legends.add(page.locator("[data-part=legend]").inner_text())
        assert shown.answer == answer and f"show.stage={stage}" in page.url
    assert len(legends) == 2
    # the mark under the hand says who it is
    page.locator("select[data-part=up]").select_option("fullest")
    shown.settle()
    box = page.locator(".picture").bounding_box()
    found = set()
    for x in range(80, int(box["width"]) - 20, 12):
        for y in range(20, int(box["height"]) - 50, 24):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if page.locator(".tip").is_visible():
                found.add(page.locator(".tip strong").inner_text())
    assert found and all(each.startswith("Client ") for each in found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_window(visit: Callable[..., Visit], width: int, scheme: str) -> None:
    shown = visit(width=width, scheme=scheme, hash_="#memory=700000&seconds=0.5")
    page = shown.page
    for summary in page.locator("summary:visible").all():
        summary.click()
    shown.settle()
    shown.check()
    drawn = page.locator(".picture canvas").first.evaluate(
        "(canvas) => new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
        ".data.buffer)).size"
    )
    assert drawn > 20
    box = page.locator(".picture").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_names_of_others_are_text(visit: Callable[..., Visit], record: FleetSliders) -> None:
    bad = """</script><script>document.title = "owned"</script><img src=x onerror="document.title = 'owned'">"""
    choices = [replace(choice, label=f"{bad}{i}") for i, choice in enumerate(record.axes[0].choices)]
    axis = replace(record.axes[0], choices=choices)
    fleet = replace(record.fleets[0], kinds=[bad, "b", "c"])
    shown = visit(replace(record, scenario=bad, axes=[axis, *record.axes[1:]], fleets=[fleet]))
    shown.type("memory", "700 kB")
    page = shown.page
    for summary in page.locator("summary:visible").all():
        summary.click()
    page.locator(".picture canvas").last.focus()
    page.keyboard.press("ArrowRight")
    shown.settle()
    assert bad in page.title() and page.locator("img").count() == 0
    assert bad in page.locator("h1").inner_text()


def test_quantities_are_those_of_edgefl(visit: Callable[..., Visit]) -> None:
    page = visit().page
    script = "([unit, values]) => values.map((value) => edgeflUnits.show(value, unit))"
    for word in WORDS:
        quantity = units.NAMED[word]
        amounts = [amount for amount in AMOUNTS if word != "share" or amount < 1e6]
        assert page.evaluate(script, [quantity.unit or word, amounts]) == list(map(quantity.show, amounts))
    reads = {"B": units.BYTES, "FLOP": units.FLOPS, "s": units.SECONDS, "J": units.JOULES, "share": units.SHARE}
    asked = {"B": ["48 MiB", "1.5 GB", "1048576", "0", "3kB"], "FLOP": ["2 TFLOP", "1e9"],
             "s": ["10 min", "1.5 h", "20 ms", "2 d"], "J": ["2 kJ", "3 mJ", "1 Wh"],
             "share": ["40%", "0.4", "12.5 %"]}  # fmt: skip
    for unit, texts in asked.items():
        numbers = page.evaluate("([unit, texts]) => texts.map((text) => edgeflUnits.parse(text, unit))", [unit, texts])
        assert numbers == [reads[unit].parse(text) for text in texts]
        exact = "([unit, values]) => values.map((v) => edgeflUnits.parse(edgeflUnits.exact(v, unit, false), unit))"
        assert page.evaluate(exact, [unit, [0.1234567, 3.25, 0.7]]) == [0.1234567, 3.25, 0.7]
    assert page.evaluate("['12', '1048575'].map((text) => edgeflUnits.parse(text, 'B'))") == [None, None]


# --- devices ---------------------------------------------------------------------------------------------------------


def test_devices_are_filtered_and_say_why(visit: Callable[..., Visit], scenario: dict[str, Any]) -> None:
    record = devices_page(scenario, ["schedule=end-to-end,{name: layerwise, stages: 9}", "training.batch=4,64"])
    shown = visit(record, width=360)
    page, body = shown.page, shown.page.locator("tbody.rows")
    assert body.locator("tr").count() == len(record.lines)
    for c, cell in enumerate(record.cells):
        signs = body.locator(f"tr td:nth-child({c + 2}) b").all_inner_texts()
        wanted = [{"yes": "✓", "no": "✗"}.get(a.answer, "?") if a else "–" for a in cell.answers]
        assert signs == (wanted or ["–"] * len(record.lines))
    assert {"✓", "–", "?"} <= set(body.locator("td b").all_inner_texts())  # ?: a Pi Zero's free memory
    page.locator("#filter").fill("raspberry text")
    shown.settle()
    kept = body.locator("tr:visible").all_inner_texts()
    assert 0 < len(kept) < len(record.lines) and all("Raspberry" in each and "text" in each for each in kept)
    page.locator("#filter").press("Enter")
    page.keyboard.press("Tab")
    body.locator('td[tabindex="0"]').focus()
    first = page.locator("#told").inner_text()
    assert "Raspberry" in first and "eligible" in first
    page.keyboard.press("ArrowRight")
    assert page.locator("#told").inner_text() != first
    again = visit(record, hash_="#" + page.url.partition("#")[2])
    assert again.page.locator("tbody.rows tr:visible").count() == len(kept)
