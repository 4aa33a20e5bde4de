"""The pages of the methods leave no method, no option and no schedule out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import edgefl
from edgefl import registry
from edgefl.errors import ScenarioError
from edgefl.methods import Method

FOLDER = Path(__file__).parents[2] / "docs" / "concepts"
OVERVIEW = (FOLDER / "methods.md").read_text(encoding="utf-8")
REFUSALS = (FOLDER.parent / "reference" / "refusals.md").read_text(encoding="utf-8")
REFERENCE = (FOLDER.parent / "reference" / "scenario" / "method.md").read_text(encoding="utf-8")
METHODS, SCHEDULES = registry.names("method"), registry.names("schedule")


def page_of(method: str) -> str:
    """The page to which the overview's list of families leads."""
    entries = re.findall(r"^- \[.*?\]\((methods/\w+\.md)\): (.*(?:\n  .*)*)", OVERVIEW, re.MULTILINE)
    (page,) = {page for page, names in entries if f"`{method}`" in names}
    return (FOLDER / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_a_row_a_section_and_a_link_to_its_options(method: str) -> None:
    table = OVERVIEW.split("## The methods side by side\n")[1].split("\n## ")[0]
    assert re.search(rf"^\| \[`{method}`\]", table, re.MULTILINE)
    page = page_of(method)
    assert re.search(rf"^## (?:.*, )?{method}\b|^# [^,]*: {method}$", page, re.MULTILINE)
    kind = registry.get("method", method)
    assert issubclass(kind, Method)
    common = Method.Options.model_fields  # `personal` of every method is on a page of its own
    own = [n for n, field in kind.Options.model_fields.items() if n not in common or field.default != common[n].default]
    if names := set(own) - {"name"}:
        assert f"reference/scenario/method.md#{method})" in page, f"{method}: the page doesn't link to its options"
        section = REFERENCE.split(f"\n## {method}\n")[1].split("\n## ")[0]
        # a field that several methods have is named in the section, and has its row before the first one
        missing = {name for name in names if f"`{name}`" not in section or f"| `{name}` |" not in REFERENCE}
        assert not missing, f"{method}: the reference doesn't say what {', '.join(sorted(missing))} does"


@pytest.mark.parametrize("method", [name for name in METHODS if registry.get("method", name).paper])
def test_a_method_says_how_it_differs_from_its_paper(method: str) -> None:
    page = page_of(method)
    section = re.search(rf"^## (?:.*, )?{method}\b.*?$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    text = section[1] if section else page
    assert re.search(r"\*\*Differs from the paper:\*\* \S|^##+ Differences from the paper$", text, re.MULTILINE)


def refused_under(method: str) -> set[str]:
    """The schedules under which the reference says that this method is refused."""
    table = REFUSALS.split("<!-- made: refusals of methods -->\n")[1].split("<!-- /made -->")[0]
    rows = [line.split(" | ") for line in table.splitlines() if f"`{method}`" in line.split(" | ")[0]]
    return {name for row in rows for name in re.findall(r"`schedule: (?:\{name: )?([\w-]+)", row[1])}


def test_no_page_says_every_schedule_where_one_is_refused() -> None:
    assert refused_under("pmcmfl") == {"heterofl", "frozen-prefix", "split"} and refused_under("ditto") == {
        "flexlora",
        "split",
    }
    for method in METHODS:
        text = " ".join(page_of(method).split())
        for sentence in re.findall(r"[^.]*(?:\bunder every schedule\b|\bSchedules:\*\* all\b)[^.]*", text):
            assert all(f"`{schedule}`" in sentence for schedule in refused_under(method)), f"{method}: {sentence}"


def test_a_row_of_refusals_is_what_a_run_is_told(tmp_path: Path) -> None:
    scenario = tmp_path / "plain.yaml"
    scenario.write_text(
        "edgefl: 1\nname: plain\nmodel: {image: {tower: vit, blocks: 2, width: 32, heads: 4, patch: 8}}\n"
    )
    (why,) = re.findall(r"^\| `heterofl` \| `adapter: .* \| (.*) \|$", REFUSALS, re.MULTILINE)
    with pytest.raises(ScenarioError, match=re.escape(why)):
        edgefl.validate(
            scenario, ["data={source: declared, clients: {image: 2}, samples: 8}", "schedule=heterofl", "adapter=lora"]
        )


@pytest.mark.parametrize(
    ("method", "down", "up", "stays"),
    [
        ("scaffold", "`model`, `control`", "`model`, `change`", "`own`"),  # algorithm 1: x and c; dy and dc; c_i
        ("feddyn", "`model`", "`model`", "`own`"),  # algorithm 1: the gradient of the local loss stays
        ("fedper", "part of `model`", "part of `model`", "part of `model`"),  # the personalisation layers stay
        ("reamfl-mean", "–", "`representations`", "`model`"),  # no model travels
    ],
)
def test_the_overview_says_what_the_paper_lets_travel(method: str, down: str, up: str, stays: str) -> None:
    (row,) = re.findall(rf"^\| \[`{method}`\].*$", OVERVIEW, re.MULTILINE)
    assert row.split(" | ")[3:6] == [down, up, stays]


def test_the_overview_names_every_schedule() -> None:
    assert all(f"`{schedule}`" in OVERVIEW for schedule in SCHEDULES)
