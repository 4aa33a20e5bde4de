"""The page for authors of plug-ins names everything that a plug-in meets, and its example works."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pages
import pytest

import edgefl
from edgefl import registry
from edgefl.data import Collection, DataSet, FolderSet, Wanted
from edgefl.devices import Availability, Budget, Rounds
from edgefl.methods import (
    ByCoordinate,
    ByUpdate,
    Cohort,
    Group,
    Kind,
    Method,
    ServerOptimizer,
    ServerState,
    Setting,
    Update,
)
from edgefl.models.adapters import Adapter
from edgefl.models.client import ClientModel
from edgefl.schedules import Schedule, Seen, Stage
from edgefl.simulation import Policy, Selection
from edgefl.simulation.selection import Candidates, Chosen
from edgefl.simulation.selection.base import Places
from edgefl.training import Attack
from edgefl.work import CodecKind, Context, Edit, Item, Pass, Payload, Scalars, Source, Step, Work
from edgefl.work.edits import EditKind
from edgefl.work.tasks import Task

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")

CLASSES = (
    Work, Pass, Payload, Item, Edit, Scalars, Step, Context, ClientModel, Source, EditKind, Method, Setting, Kind,
    ServerState, Update, Cohort, Collection, DataSet, FolderSet, Wanted, Schedule, Seen, Stage, Selection, Places,
    Candidates, Chosen, Policy, Budget, Rounds, ByCoordinate, ByUpdate, Group, ServerOptimizer, CodecKind,
    Availability, Attack, Task, Adapter,
)  # fmt: skip

MADE_BY_INIT = {
    Method: {"options", "setting"},
    Schedule: {"stages", "offered", "deliver_final"},
    Selection: {"options", "own", "seed"},
    Policy: {"options", "own"},
    ByCoordinate: {"Options", "options", "own"},
    ByUpdate: {"Options", "options", "own"},
    ServerOptimizer: {"options", "own", "lr"},
    CodecKind: {"args"},
    ClientModel: {"modalities", "widths"},
    Budget: {"noun", "quantity", "summary"},
    Availability: {"options", "seed"},
    Attack: {"options"},
    Task: {"step", "score"},
}
"""Attributes that a class is given when it is made or that a subclass sets, and that have no value in the class."""


def section(title: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{2,}} |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no heading {title!r}"
    return found[2]


def names_in(text: str) -> set[str]:
    """The names in the first column of the tables in a text."""
    return {cell.partition("(")[0] for cell in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)}


def public(of: type[Any]) -> set[str]:
    """Fields, properties and methods of a class, those of torch's and Python's own bases left out."""
    found = {field.name for field in fields(of)} if is_dataclass(of) else set()
    bases = [base for base in of.__mro__ if is_dataclass(base)] if is_dataclass(of) else [of]
    for name, member in (entry for base in bases for entry in vars(base).items()):
        kinds = (property, cached_property, classmethod, staticmethod)
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, kinds)):
            found.add(name)
    # class attributes: options, and what a subclass may set
    found |= {name for name in getattr(of, "__annotations__", {}) if name in vars(of) and not name.startswith("_")}
    found |= {"Options"} if "Options" in vars(of) else set()
    return found | MADE_BY_INIT.get(of, set())


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_every_public_name_of_a_class_is_on_the_page_and_no_other(of: type[Any]) -> None:
    assert names_in(section(of.__name__)) == public(of)


def entry_points(group: str) -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = project["entry-points"][f"edgefl.{group}"]
    return found


@pytest.mark.parametrize("group", ["steps", "edits"])
def test_every_registered_step_and_edit_is_on_the_page_with_its_import_path(group: str) -> None:
    rows = re.findall(r"^\| `([^`]+)` \| `(edgefl\.[^`]+)` \|", section(f"Built-in {group}"), re.MULTILINE)
    assert dict(rows) == entry_points(group)


def test_every_argument_that_a_step_edit_or_the_data_read_is_on_the_page() -> None:
    told = section("Built-in steps") + section("Built-in edits") + section("Batches")
    read = {
        name
        for folder in ("work", "methods", "schedules", "data")
        for path in (ROOT / "edgefl" / folder).rglob("*.py")
        for name in re.findall(r"\bargs(?:\.get\(|\[)\"(\w+)\"", path.read_text(encoding="utf-8"))
    }
    assert read and {name for name in read if f"`{name}`" not in told} == set()


def test_every_kind_of_part_is_on_the_page_with_an_example_that_runs() -> None:
    """A row for each kind; its page registers one, and tests/docs/test_pages.py runs the page."""
    rows = re.findall(
        r"^\| `(edgefl\.\w+)` \| ([\w ]+) \| .* \| \[[\w-]+\]\(\.\./(how-to/[\w-]+\.md)(#[\w-]+)?\) \|$",
        section("Entry points"), re.MULTILINE,
    )  # fmt: skip
    assert {kind: group for group, kind, *_ in rows} == registry.GROUPS
    for group, kind, page, anchor in rows:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        headings = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}
        assert not anchor or anchor[1:] in headings, f"{page}{anchor}"
        read = [block for block in pages.blocks(f"docs/{page}") if block.language in ("python", "toml")]
        registers = [block for block in read if f'register("{kind}", ' in block.text or f'."{group}"]' in block.text]
        assert registers and f"docs/{page}" in pages.PAGES, f"{page} registers no {kind}"


def test_bases_of_own_parts_are_what_the_page_says() -> None:
    """Each of edgefl's own parts of these kinds is a subclass of the class that its row names."""
    for noun, base in (("availability", Availability), ("attack", Attack), ("task", Task), ("adapter", Adapter)):
        assert all(issubclass(registry.get(noun, name), base) for name in registry.names(noun))


def test_every_rule_of_check_is_on_the_page() -> None:
    """A rule is a constant of the class ``Rule`` or of the planning's rules: a sentence."""
    checked = ast.parse((ROOT / "edgefl/commands/check/findings.py").read_text(encoding="utf-8")).body
    planned = ast.parse((ROOT / "edgefl/planning/rules.py").read_text(encoding="utf-8")).body
    (own,) = (node for node in checked if isinstance(node, ast.ClassDef) and node.name == "Rule")
    rules = {
        node.value.value
        for node in (*own.body, *planned)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and " " in str(node.value.value)
    }
    assert set(re.findall(r"^- (.*)$", section("What check holds"), re.MULTILINE)) == rules


@pytest.fixture(scope="module")
def package(install: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> None:
    """The example of the page, installed."""
    folder = tmp_path_factory.mktemp("seen")
    blocks = dict(re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    (folder / "seen.py").write_text(blocks["seen.py"], encoding="utf-8")
    project = tomllib.loads(blocks["pyproject.toml"])["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    install(folder)


def test_the_example_keeps_the_rules(package: None) -> None:
    report = edgefl.check("method", "seen", runs=False, schedules=["layerwise"], kinds=["image"])
    assert report.ok, str(report)


def test_the_example_counts_and_clients_keep_their_counts(
    package: None, tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    scenario = tiny(method="seen", schedule={"name": "layerwise", "stages": 2, "rounds": 2})
    run = edgefl.run(scenario, output=tmp_path / "run")
    weights = run.weights()
    image = [client for client in run.records("clients") if client["kind"] == "image" and client["round"] == 2]
    assert weights["table/seen.image"].sum() == sum(client["samples"] for client in image)
    assert {client["kind"] for client in run.records("clients")} == {"image", "text"}
    # the kept counts never travel: what goes down beside the model is nothing
    assert all("kept" not in client["download_bytes_by_payload"] for client in image)
    kept = [t for named in run.kept().values() for t in named.values()]
    assert sorted(float(t.sum()) for t in kept) == [80.0] * 5  # 40 samples in each of two rounds
