"""What a newcomer reads is true: every command and snippet runs, and prints what the page shows."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml

import edgefl
from edgefl.scenario import load
from tools import prose
from tools.pages import front_picture
from tools.pages.outputs import agree, renewed
from tools.pages.running import PAGES, ROOT, Shelf, blocks, pictures

READ = [page for page in PAGES if any(block.language in ("sh", "python", "yaml", "text") for block in blocks(page))]
DEAR = {
    *(
        f"docs/guides/{name}.md"
        for name in (
            "describe-a-device",
            "edge-data",
            "fit",
            "hugging-face-data",
            "image-captions",
            "lora-bert",
            "many-scenarios",
            "nights-and-batteries",
            "own-data",
            "own-method",
            "own-model",
            "own-parts",
            "pre-trained",
            "private-clients",
            "sweep",
            "use-the-result",
            "who-fits",
        )
    ),
    *(f"docs/concepts/{name}.md" for name in ("evaluation", "schedules")),
    *(
        f"docs/concepts/methods/{name}.md"
        for name in ("averaging", "baselines", "depthfl", "prototypes", "representations")
    ),
    "docs/reference/records.md",
    "docs/reference/towers.md",
}
"""Pages that take seconds, of which the quick tests read none; they take those where a newcomer begins."""
LONG = [page for page in READ if any(block.slow for block in blocks(page))]
ELSEWHERE = {
    "docs/concepts/how-the-clock-works.md": "tools/pages/clock.py",
    "docs/evidence/which-schedule-wins.md": "tests/docs/test_pages.py",
    "docs/reference/json/index.md": "tests/records/test_answers.py",
    "docs/reference/commands.md": "tests/console/test_everyday.py",
    "docs/reference/protocol.md": "tests/docs/test_reference_protocol.py",
    "docs/reference/python.md": "tests/docs/test_examples.py",
    "docs/reference/scenarios.md": "tools/pages/scenarios.py",
}
"""Pages whose examples are run by another test, or are parts of files that tests run."""
VERSIONS = json.loads((ROOT / "tests/recorded/expected/versions.json").read_text(encoding="utf-8"))
RECORDED_WITH, SAME_KERNELS = VERSIONS["torch"], VERSIONS["kernels"] == torch.backends.cpu.get_cpu_capability()
as_recorded = pytest.mark.skipif(
    torch.cuda.is_available() or torch.__version__.partition("+")[0] != RECORDED_WITH,
    reason=f"the pages show torch {RECORDED_WITH} without a GPU",
)
OF_PEAKS = {"docs/guides/own-schedule.md", "docs/guides/understand-a-run.md"}
"""Pages that show peaks without a unit, or who takes part by them, which the scratch of kernels decides."""
OF_HALVES = {"docs/guides/fine-tune.md", "docs/guides/fit.md"}
"""Pages that show peaks in half precision, whose kernels differ among processors with AVX-512 too: some have AMX."""
SCENARIOS = [path for path in (ROOT / "scenarios").rglob("*.yaml") if path.parent.name != "suites"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shelf(mylab: Path) -> Shelf:
    """A folder with the examples' files, in which the pages are read."""
    return Shelf(mylab)


def read(shelf: Shelf, page: str, *, slow: bool) -> None:
    same_kernels = SAME_KERNELS and page not in OF_HALVES
    for block, printed in shelf.read(page, slow=slow):
        assert agree(block.text, printed, same_kernels=same_kernels), f"{block} shows something else than\n{printed}"
    if slow:
        assert all((shelf.folder / picture.source).is_file() for picture in pictures(page)), page


@as_recorded
@pytest.mark.parametrize(
    "page",
    # a page that is read whole below isn't read in part in the same folder before
    [pytest.param(p, marks=pytest.mark.slow) if p in DEAR else p for p in READ if p not in DEAR.intersection(LONG)],
)
def test_what_a_page_shows_is_what_happens(shelf: Shelf, page: str) -> None:
    if page in OF_PEAKS and not SAME_KERNELS:
        pytest.skip(f"the page shows peaks with the kernels of {VERSIONS['kernels']}")
    read(shelf, page, slow=False)


@as_recorded
@pytest.mark.slow(smaller="test_what_a_page_shows_is_what_happens")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT asks for it
@pytest.mark.parametrize("page", LONG)
def test_what_takes_long_is_what_happens_too(shelf: Shelf, page: str) -> None:
    read(shelf, page, slow=True)


def test_every_page_with_commands_is_read() -> None:
    pages = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
    shown = {page for page in pages if any(block.language in ("sh", "python", "yaml") for block in blocks(page))}
    assert shown - {*PAGES} == ELSEWHERE.keys()
    assert all((ROOT / holder).is_file() for holder in ELSEWHERE.values())


def test_the_scenario_of_elastics_seeds_is_valid(tmp_path: Path) -> None:
    (scenario,) = (block for block in blocks("docs/evidence/which-schedule-wins.md") if block.file)
    (tmp_path / "elastic-depth.yaml").write_text(scenario.body)
    assert len(load(tmp_path / "elastic-depth.yaml").combinations()) == 12


def test_another_output_is_found() -> None:
    shown = "head\n...\naccuracy 0.572\npeak 12.3 MiB\n...\n"
    assert agree(shown, "head\nmore\naccuracy 0.572\npeak 12.3 MiB\nend\n")
    assert agree(shown, "head\naccuracy 0.601\npeak 12.3 MiB\n")
    assert not agree(shown, "head\nmore\naccuracy 0.701\npeak 12.3 MiB\nend\n")
    assert not agree(shown, "head\nmore\naccuracy 0.572\npeak 12.4 MiB\nend\n")
    assert not agree(shown, "another head\naccuracy 0.572\npeak 12.3 MiB\n")
    assert not agree("head\n", "head\nmore\n")
    assert not agree("...\nend\n", "head\nend\nmore\n")
    assert agree("peak  12.3 MiB, 6\n", "peak 9.4 KiB, 6\n", same_kernels=False)
    assert not agree("peak 12.3 MiB, 6\n", "peak 9.4 KiB, 7\n", same_kernels=False)


def test_renewed_outputs_keep_their_gaps_and_their_lines() -> None:
    printed = "=== a ===\nkind   peak\n───────────\nimage  1.5 MiB\ntext   9 KiB\n=== b ===\nimage  2 MiB\nend\n"
    assert renewed("=== a ===\nkind  peak\n", printed) == printed
    shown = "...\nkind   peak\n─────────\n...\ntext   8 MiB\n...\n"
    assert renewed(shown, printed) == "...\nkind   peak\n───────────\n...\ntext   9 KiB\n...\n"
    assert renewed("...\nimage  2 MiB\nend\n", printed) == "...\nimage  2 MiB\nend\n"
    assert renewed("...\nimage  1.9 MiB\n...\n", printed) == "...\nimage  1.5 MiB\n...\n"  # the likest, not the last
    assert renewed("...\naudio  2 MiB\n...\n", printed) is None
    assert renewed("...\ntext   9 KiB\n...\nkind   peak\n...\n", printed) is None
    assert renewed("=== a ===\n...\nimage  2 MiB\n", printed) is None


# --- what stands outside of outputs ---------------------------------------------------------------------------------


def test_the_commands_that_ci_runs_are_where_it_looks_for_them() -> None:
    """The first block under these headings of the README, as .ci/run reads it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for heading, words in (
        ("Install", ("-m venv", "install -c constraints.txt .", "activate")),
        ("Try it", ("edgefl run quickstart", "edgefl report runs/quickstart")),
        ("Test", ("-m venv", "-e '.[test]'", "-m pytest")),
    ):
        section = text.split(f"\n## {heading}\n", 1)[1]
        command = section.split("```sh\n", 1)[1].split("```", 1)[0].strip()
        assert all(word in command for word in words)
        assert "\n## " not in section.split("```sh\n", 1)[0]
    assert len(text.splitlines()) <= 90


def test_getting_started_installs_as_the_readme_does() -> None:
    first = next(block for block in blocks("docs/get-started/install.md") if block.language == "sh")
    make, install, activate = first.text.splitlines()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert make in readme and install in readme and activate == "source .venv/bin/activate"
    cpu = next(block for block in blocks("docs/get-started/install.md") if block.language == "bash")
    assert cpu.text in readme


def test_commands_within_the_text_exist_with_their_options_and_scenarios() -> None:
    from edgefl.console import load_commands

    commands: Any = typer.main.get_command(load_commands())
    shipped = {path.relative_to(ROOT / "scenarios").with_suffix("").as_posix() for path in SCENARIOS}
    checked = 0
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"`edgefl ((?:[^`]|\n)+)`", text):
            name, *words = line.split()
            if name.startswith("-"):
                assert name in {option for parameter in commands.params for option in parameter.opts}
                continue
            command = commands.commands[name]
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= known, f"{page}: edgefl {line}"
            named = {word for word in words if word.startswith("papers/") or word in ("quickstart", "tour", "million")}
            assert named <= shipped, f"{page}: edgefl {line}"
            checked += 1
    assert checked > 20


def test_every_paper_has_its_command() -> None:
    for page in (page for page in prose.pages() if page.startswith("docs/evidence/papers/")):
        assert re.search(r"^(edgefl|python tools/\w+\.py) ", (ROOT / page).read_text(encoding="utf-8"), re.M), page


def test_an_example_can_be_followed_from_its_own_page() -> None:
    """A page that says ``pip install -e .`` registers what its files define, and nothing else: in a project of its own,
    or in the one of the page that it links."""
    for page in PAGES:
        files = {block.file: block for block in blocks(page) if block.file}
        says = any("pip install -e ." in block.text for block in blocks(page) if block.language == "sh")
        assert says == ("pyproject.toml" in files), page
        if says:
            project = tomllib.loads(files["pyproject.toml"].body)["project"]
            text = (ROOT / page).read_text(encoding="utf-8")
            assert "name" in project or "](own-method.md#make-it-a-package)" in text, page
            points = project["entry-points"]
            named = {value for group in points.values() for value in group.values()}
            for value in named:
                module, name = value.split(":")
                body = next(
                    files[file].body
                    for file in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py")
                    if file in files
                )
                assert re.search(rf"^(?:class |def )?{name}\b", body, re.MULTILINE), f"{page}: {value}"


def test_files_that_the_explanations_name_exist() -> None:
    text = (ROOT / "docs/concepts/how-it-works.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:edgefl|commands)/[\w/.]+)`", text)
    assert len(named) > 20
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "edgefl" / name).exists(), name


def test_the_readme_counts_what_there_is() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = PROJECT["project"]["entry-points"]
    assert f"{len(parts['edgefl.methods'])} methods, {len(parts['edgefl.schedules'])} schedules" in text
    devices, links = (len(list((ROOT / "profiles" / folder).glob("*.yaml"))) for folder in ("devices", "networks"))
    assert f"{devices} devices and {links} links" in text


# --- the picture -----------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_the_words_beside_the_front_picture_are_its_numbers")
def test_the_front_picture_shows_who_fits_in_the_quickstart() -> None:
    found = front_picture.facts()
    scenario = yaml.safe_load((ROOT / "scenarios/quickstart.yaml").read_text(encoding="utf-8"))
    for run, schedule in zip(found["runs"], scenario["compare"]["schedule"], strict=True):
        sets = ["compare=null", f"schedule={json.dumps(schedule)}"]
        clients = edgefl.profile("quickstart", sets, clients=True).clients or ()
        assert run["schedule"] == schedule["name"] and len(clients) == len(found["clients"])
        assert {each.client for each in clients if 0 < each.eligible_stages < each.stages} == {*run["in_part"]}
        assert {each.client for each in clients if not each.eligible_stages} == {*run["left_out"]}


def test_the_words_beside_the_front_picture_are_its_numbers() -> None:
    found = front_picture.facts()
    alt = front_picture.alt_text(found)
    for page in ("README.md", "docs/index.md"):
        assert alt in " ".join((ROOT / page).read_text(encoding="utf-8").split())
    scores = re.search(r"image balanced accuracy \(0\.083\) +(.*)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert scores and scores[1].split() == [f"{run['score']:.3f}" for run in found["runs"]]
    for file in ("docs/front-picture.svg", "docs/front-picture-dark.svg"):
        drawn = (ROOT / file).read_text(encoding="utf-8")
        rings = sum(len(run["in_part"]) + len(run["left_out"]) for run in found["runs"])
        assert drawn.count('fill="none"') == rings + 2  # and those of the legend
        assert drawn.count("<circle") == 3 * len(found["clients"]) + 3


def test_the_words_beside_the_picture_of_schedules_are_its_numbers() -> None:
    recorded = json.loads((ROOT / "docs/evidence/which-schedule-wins.json").read_text(encoding="utf-8"))
    wins = [(f["winner"], f["low"] / 2**20) for f in recorded["fleets"] if f["small_share"] == 1 and f["winner"]]
    begins = [min(low for name, low in wins if name == winner) for winner in ("layer-wise", "frozen-prefix", "elastic")]
    words = "layer-wise is best from {:.0f} MiB, a frozen prefix from {:.0f}, elastic from {:.0f}]".format(*begins)
    page = (ROOT / "docs/evidence/which-schedule-wins.md").read_text(encoding="utf-8")
    assert words in page and "[The best schedule is the one that just fits: " in page
    assert len(recorded["seeds"]) == 10 and len(recorded["variants"]) == 8
