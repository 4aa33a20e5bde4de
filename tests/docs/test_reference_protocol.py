"""The page for authors of plug-ins leaves nothing out that the code reads, and its example works.

The sections of classes are made from the classes (tests/docs/test_reference.py says whether they are up to date).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl import registry
from edgefl.devices import Availability
from edgefl.models.adapters import Adapter
from edgefl.testing import check_part
from edgefl.training import Attack
from edgefl.work.steps import Step, Wrapper
from edgefl.work.tasks import Task
from tools.pages import classes, protocol, running

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")


def test_a_class_is_told_with_its_own_and_inherited_names_and_their_texts() -> None:
    from edgefl.methods.fedprox import Proximal
    from edgefl.work import Pass, Work

    told = {member.name: member for member in classes.members(Work)}
    assert {"kind", "accumulation", "scalars", "around"} <= told.keys() and "_form" not in told
    assert told["around"].arguments == "(wrapper, **args)" and told["around"].type == "Work"
    assert told["down"].type == "tuple[Payload, ...] = ()" and told["down"].text == "What the node needs at the start."
    assert "finish" in {m.name for m in classes.members(Proximal)}
    assert "finish" not in {m.name for m in classes.members(Proximal, [Step, Wrapper])}
    (row,) = (line for line in classes.sections([Pass], [Wrapper]).splitlines() if line.startswith("| `around`"))
    assert row.startswith("| `around` | `tuple[str, ...] = ()` | Registered [`Wrapper`](#wrapper)s of the step")


def test_a_public_name_without_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Toy\.colour has no text: write one under it"):
        classes.sections([Toy])


class Toy:
    """A class with a name that nothing tells."""

    size: int = 1
    """How large."""
    colour: str = "red"


def test_every_argument_that_a_step_edit_or_the_data_read_is_on_the_page() -> None:
    read = {
        name
        for folder in ("work", "methods", "schedules", "data")
        for path in (ROOT / "edgefl" / folder).rglob("*.py")
        for name in re.findall(r"\bargs(?:\.get\(|\[)\"(\w+)\"", path.read_text(encoding="utf-8"))
    }
    told = re.findall(r"`(?:args\.)?(\w+)`", PAGE)
    assert read and read - set(told) == set()


def test_every_kind_of_part_has_an_example_that_runs() -> None:
    """Its page registers one, and tests/docs/test_pages.py runs the page."""
    assert protocol.PARTS.keys() == registry.GROUPS.keys()
    for kind, (_, example) in protocol.PARTS.items():
        page, _, heading = example.partition("#")
        text = (ROOT / "docs" / "guides" / f"{page}.md").read_text(encoding="utf-8")
        headings = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}
        assert not heading or heading in headings, example
        read = [each for each in running.blocks(f"docs/guides/{page}.md") if each.language in ("python", "toml")]
        group = registry.GROUPS[kind]
        registers = [each for each in read if f'register("{kind}", ' in each.text or f'."{group}"]' in each.text]
        assert registers and f"docs/guides/{page}.md" in running.PAGES, f"{page} registers no {kind}"


def test_bases_of_own_parts_are_what_the_page_says() -> None:
    """Each of edgefl's own parts of these kinds is a subclass of the class that its row names."""
    for noun, base in (("availability", Availability), ("attack", Attack), ("task", Task), ("adapter", Adapter)):
        assert all(issubclass(registry.get(noun, name), base) for name in registry.names(noun))


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


@pytest.mark.slow(smaller="test_every_kind_of_part_has_an_example_that_runs")
def test_the_example_keeps_the_rules(package: None) -> None:
    report = check_part("method", "seen", runs=False, schedules=["layerwise"], kinds=["image"])
    assert report.ok, str(report)


@pytest.mark.slow(smaller="test_every_kind_of_part_has_an_example_that_runs")
def test_the_example_counts_and_clients_keep_their_counts(
    package: None, tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    scenario = tiny(method="seen", schedule={"name": "layerwise", "stages": 2, "rounds": 2})
    run = edgefl.run(scenario, out=tmp_path / "run")
    weights = run.weights()
    image = [client for client in run.records("clients") if client["kind"] == "image" and client["round"] == 2]
    assert weights["table/seen.image"].sum() == sum(client["samples"] for client in image)
    assert {client["kind"] for client in run.records("clients")} == {"image", "text"}
    # the kept counts never travel: what goes down beside the model is nothing
    assert all("kept" not in client["download_bytes_by_payload"] for client in image)
    kept = [t for named in run.client_tensors().values() for t in named.values()]
    assert sorted(float(t.sum()) for t in kept) == [32.0] * 5  # 16 samples in each of two rounds
