"""What makes the command line easy: examples, completion, lists, a scenario to begin with, quick answers."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema import Draft202012Validator
from typed_commands import imported

import edgefl
from edgefl import registry
from edgefl.commands.parts.schema_parts import describe_part, kind_names, parts_of
from edgefl.commands.validate.schemas import FILES, records, schema_text
from edgefl.console import load_commands, main
from edgefl.runs.folders import OF_EVERY_RUN, TABLES
from edgefl.scenario import library_folder, load, scenario_names
from edgefl.scenario.document import read_file

ROOT = Path(__file__).resolve().parents[2]


def answer(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with (
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        pytest.raises(SystemExit) as ended,
    ):
        main([*words])
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, in which only edgefl is installed."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-m", "edgefl", *words], capture_output=True, text=True, env=variables, timeout=600
    )


def test_a_missing_option_is_told_with_what_it_is() -> None:
    for words, said in (
        (("fit", "quickstart"), "Missing option '--device'. Device that should take part: a known name"),
        (("explain", "runs/x"), "Missing option '--round'. A round that has ended, from 1."),
        (("profile",), "Missing argument 'SCENARIO'. A scenario file, or the name of a shipped one"),
    ):
        code, _, told = answer(*words)
        assert code == 2
        assert said in " ".join(told.replace("│", " ").split())


# --- examples --------------------------------------------------------------------------------------------------------


def commands(group: Any, words: str = "edgefl") -> Iterator[tuple[str, Any]]:
    yield words, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{words} {name}")


COMMANDS = dict(commands(typer.main.get_command(load_commands())))
EXAMPLES = {words: (command.epilog or "").split("\n\n")[1:] for words, command in COMMANDS.items()}
LONG = {
    "edgefl run quickstart",
    "edgefl run mine.yaml -o runs/first --set training.lr=1e-3",
    "edgefl validate quickstart --as yaml --set round.deadline=30s",
    "edgefl doctor --quick",
    "edgefl doctor --quick --as json",
    "edgefl devices calibrate --quick",
    "edgefl devices calibrate --quick -o mydevice.yaml",
    "edgefl sweep mine.yaml quickstart --vary training.batch=4,8 --devices all",
    "edgefl sweep mine.yaml --page page.html",
    *EXAMPLES["edgefl fit"],
    *EXAMPLES["edgefl tune"],
    *EXAMPLES["edgefl bench"],
    *EXAMPLES["edgefl analyse"],
    "edgefl export runs/mine --to figures --only fleet --format pdf,svg",
}
"""Examples that take more than a few seconds."""
FEWER = ("data.samples=48", "data.test=100", "pretrain.image.epochs=1", "pretrain.text.epochs=1")
"""What makes the shipped suite's minutes few."""


@pytest.mark.parametrize("words", COMMANDS)
def test_help_ends_with_examples(words: str) -> None:
    assert 2 <= len(EXAMPLES[words]) <= 3
    name = words if words != "edgefl" else "edgefl "
    assert all(example.startswith(name) and len(example) < 78 for example in EXAMPLES[words])
    code, out, _ = answer(*words.split()[1:], "--help")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert code == 0 and lines[-len(EXAMPLES[words]) - 1 :] == ["Examples:", *EXAMPLES[words]]


@pytest.fixture(scope="module")
def study(tiny: Callable[..., dict[str, Any]], layerwise_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples name: a scenario, a suite, a finished run and two profiles."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "mine.yaml").write_text(yaml.safe_dump({"edgefl": 1, **tiny(), "name": "mine"}))
    suite = {
        "edgefl": 1, "name": "suite", "scenario": tiny(), "seeds": 1, "metric": "image.accuracy", "budget": "memory",
        "small": ["100%"], "variants": {"fedavg": {"method": "fedavg"}, "fedprox": {"method": "fedprox"}},
    }  # fmt: skip
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    shutil.copytree(layerwise_run.path, folder / "runs" / "mine")
    code, out, _ = answer("profile", str(folder / "mine.yaml"), "--as", "json")
    assert code == 0
    (folder / "old.json").write_text(out)
    return folder


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, marks=pytest.mark.slow if example in LONG else ())
        for example in dict.fromkeys(example for examples in EXAMPLES.values() for example in examples)
        # these would change the tester's shell, and need a run of real devices: test_real_profiles.py
        if example not in ("edgefl --install-completion", "edgefl devices calibrate --from runs/boards-real -o boards")
    ],
)
def test_an_example_works_as_it_is_typed(example: str, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study)
    made = shlex.split(example)
    if made[1] == "new" or example == "edgefl run mine.yaml":
        # these write files of their own
        monkeypatch.chdir(study.parent)
        shutil.copy(study / "mine.yaml", "mine.yaml") if made[1] == "run" else (study.parent / "study").mkdir(
            exist_ok=True
        )
        if made[1] == "new":
            made.append("--force")
    if made[1:3] == ["bench", "small"]:
        made += [f"--set={change}" for change in FEWER]
    code, out, err = answer(*made[1:])
    assert code in ((0, 1) if made[1] == "fit" else (0,)), err
    assert out or err or " -o " in example


# --- completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_printed(shell: str) -> None:
    done = process(_EDGEFL_COMPLETE=f"source_{shell}")
    assert done.returncode == 0 and "_EDGEFL_COMPLETE" in done.stdout and "edgefl" in done.stdout


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("edgefl val", ["validate"]),
        ("edgefl devices sh", ["show"]),
        ("edgefl run quick", ["quickstart"]),
        ("edgefl validate mine", ["mine.yaml"]),
        ("edgefl sweep --sens", ["--sensitivity"]),
    ],
)
def test_words_are_completed(typed: str, completed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    count = str(len(typed.split()) - 1)
    done = process(_EDGEFL_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=count)
    assert done.stdout.split() == completed, done.stderr


# --- quick answers ---------------------------------------------------------------------------------------------------

NONE = {"torch", "pandas", "matplotlib", "numpy", "scipy", "transformers", "torchvision", "timm", "ray", "simpy"}
LIGHT = {
    "--version": {*NONE, "pydantic", "rich.console"},
    "devices list": NONE - {"numpy"},
    "devices show phone-mid": NONE - {"numpy"},
}
LIGHT |= dict.fromkeys(("parts", "parts data-set", "new mine --force"), NONE)
LIGHT |= {"validate --schema": NONE, "validate --schema rounds": NONE}
OF_RUN = {
    "report {run} -o page.html": NONE - {"numpy"},
    "export {run} --to figures --format svg": NONE - {"numpy", "matplotlib"},
    "compare {run} {run}": NONE - {"numpy", "scipy"},
    "explain {run} --round 1": NONE - {"numpy"},
    "export {run} --to perfetto": NONE - {"numpy"},
    "run --resume {run}": NONE - {"numpy"}
    | {"edgefl.data.opening", "edgefl.simulation", "edgefl.setup", "edgefl.cells"},
}
"""Commands that read a finished run; to show it ``run`` needs no room that runs one."""
MISTAKES = (
    "runn quickstart",
    "run quickstart --set foo=1",
    "run quickstart --set training",
    "validate nofile.yaml",
    "validate quickstart --set foo.bar=1 --set training.lr=2",
    "profile nofile.yaml --as csv",
    "sweep quickstart --vary",
    "fit nofile.yaml --device phone-mid",
    "sweep nofile.yaml --devices all",
)
"""What is typed wrong, which is said before torch is imported."""
OF_TORCH = {
    "validate {tiny}": {
        "pandas",
        "scipy",
        "transformers",
        "torchvision",
        "timm",
        "ray",
        "torch._dynamo",
        "sqlite3",
        "edgefl.records.clients",
        "edgefl.records.rounds",
        "edgefl.runs.folders",
    },
    "profile {tiny}": {"pandas", "transformers", "torchvision", "timm", "ray"},
    "sweep {tiny} --devices all": {"pandas", "transformers", "torchvision", "timm", "ray"},
}
"""Commands of a scenario whose towers are edgefl's own.  Fake tensors import torch._dynamo, and validate makes none;
nor does it read or write runs, whose records took a fifth of the time of edgefl's own imports."""


def test_what_needs_no_torch_does_not_import_it(tmp_path: Path) -> None:
    assert imported(LIGHT, tmp_path) == dict.fromkeys(LIGHT, (0, []))


def test_a_run_is_read_without_torch(layerwise_run: Any, tmp_path: Path) -> None:
    shutil.copytree(layerwise_run.path, tmp_path / "run")
    commands = {words.format(run="run"): libraries for words, libraries in OF_RUN.items()}
    assert imported(commands, tmp_path) == dict.fromkeys(commands, (0, []))


def test_a_mistake_that_the_text_shows_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    assert imported(dict.fromkeys(MISTAKES, NONE), tmp_path) == dict.fromkeys(MISTAKES, (2, []))


def test_a_scenario_of_own_towers_imports_no_library_of_models(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"edgefl": 1, **tiny()}))
    commands = {words.format(tiny="tiny.yaml"): libraries for words, libraries in OF_TORCH.items()}
    assert imported(commands, tmp_path, ["torch"]) == dict.fromkeys(commands, (0, []))


# --- lists -----------------------------------------------------------------------------------------------------------


def test_the_kept_lists_are_what_the_parts_say() -> None:
    kinds = kind_names()
    listed = parts_of(kinds).sections
    for kind, noun in kinds.items():
        own = [name for name in registry.names(noun) if registry.origin(noun, name).package == "edgefl"]
        live = [describe_part(noun, name) for name in own]
        assert [entry for entry in listed[kind] if entry.name in own] == live, "run python tools/pages.py"
        assert all(entry.summary for entry in live)


def test_a_list_has_a_line_for_every_part() -> None:
    code, out, _ = answer("parts", "--as", "json")
    found = json.loads(out)
    assert code == 0 and tuple(found["sections"]) == tuple(kind_names())
    text = answer("parts")[1]
    # parts of plug-ins that tests install are listed too
    broken = {(one["part"], one["name"]) for one in found.get("broken", ())}
    for kind, noun in kind_names().items():
        entries = found["sections"][kind]
        assert {(noun, entry["name"]) for entry in entries} | broken >= {(noun, name) for name in registry.names(noun)}
        for entry in entries:
            assert entry["summary"].split()[0] in text and entry["name"] in text


# --- a scenario to begin with ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("like", ["quickstart", "tour", "papers/fedcola-colayer-none"])
def test_a_new_scenario_is_the_other_under_another_name(
    like: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = answer("new", "my study", "--like", like)
    assert (code, err) == (0, "") and out.startswith("my study.yaml: a copy of ")
    text = Path("my study.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=edgefl.schema.json\n")
    assert text.count("yaml-language-server") == 1 and f"copy of {like}." in text
    shipped = (library_folder() / f"{like}.yaml").read_text()
    comments = [line for line in shipped.splitlines() if line.startswith("# ") and "yaml-language-server" not in line]
    assert all(line in text.splitlines() for line in comments)
    made, original = load("my study.yaml"), load(like)
    assert made.name == "my study" and {**made.to_data(), "name": ""} == {**original.to_data(), "name": ""}
    Draft202012Validator(json.loads(Path("edgefl.schema.json").read_text())).validate(
        read_file(Path("my study.yaml"), "").data  # 1e-3 is a number in YAML 1.2, which editors read
    )


@pytest.mark.parametrize("like", ["quickstart", "tour", "relays"])
def test_a_new_scenario_with_a_fleet_of_the_library_is_the_other_but_for_its_fleet(
    like: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer("new", "mine", "--like", like, "--fleet", "phones")[0] == 0
    assert yaml.safe_load(Path("mine.yaml").read_text())["fleet"] == {"like": "phones"}
    made, original = load("mine.yaml").to_data(), load(like).to_data()
    assert made["fleet"]["devices"] == {"phone-entry": 0.45, "phone-mid": 0.4, "phone-flagship": 0.15}
    assert {**made, "name": "", "fleet": ""} == {**original, "name": "", "fleet": ""}


def test_a_scenario_without_a_fleet_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tower = "model: {text: {tower: transformer, blocks: 1, width: 8, heads: 1}}"
    Path("bare.yaml").write_text(f"edgefl: 1\ndata: {{source: glyphs, clients: {{text: 4}}}}\n{tower}\n")
    assert answer("new", "mine", "--like", "bare.yaml", "--fleet", "classroom")[0] == 0
    assert load("mine.yaml").to_data()["fleet"]["links"] == {"ethernet-gigabit": 0.5, "wifi-5": 0.5}


def test_an_unknown_fleet_is_refused_with_the_nearest_and_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ", ".join(sorted(path.stem for path in (ROOT / "profiles" / "fleets").glob("*.yaml")))
    for given, told in (
        ("phonse", f"unknown fleet 'phonse'; did you mean 'phones'? The fleets are {names}"),
        ("zz", f"unknown fleet 'zz'; allowed: {names}"),
    ):
        assert answer("new", "mine", "--fleet", given) == (2, "", f"edgefl: error: {told}\n")
    assert not Path("mine.yaml").exists()


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("mine")
    code, out, err = answer("new", "mine.yaml")
    assert (code, out) == (2, "") and err == (
        "edgefl: error: mine.yaml: there is such a file already: choose another name, or add --force\n"
    )
    assert Path("mine.yaml").read_text() == "mine" and not Path("edgefl.schema.json").exists()
    assert json.loads(answer("new", "mine", "--force", "--as", "json")[1]) == {
        "scenario": "mine.yaml", "schema": "edgefl.schema.json", "like": "quickstart", "fleet": None,
    }  # fmt: skip
    assert load("mine.yaml").name == "mine"
    for words, message in (
        (("new", "mine.yaml/other"), "mine.yaml/other.yaml: its folder can't be made: File exists"),
        (
            ("new", "other", "--like", "quickstrat"),
            "quickstrat: there is no such file or shipped scenario; did you mean",
        ),
        (("new", "a\nb"), "can't be the name of a scenario"),
        (("validate", "--schema", "-o", "nowhere/it.json"), "can't write nowhere/it.json: No such file or directory"),
    ):
        code, out, err = answer(*words)
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1


# --- the schema ------------------------------------------------------------------------------------------------------


def test_records_have_schemas(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    schemas = {name: json.loads(schema_text(name)) for name in records()}
    assert {*FILES, *TABLES, "fit", "parts"} <= set(schemas)
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    run = edgefl.run(tiny(evaluation={"every": 1, "clients": "20%"}), out=tmp_path / "run")
    for table in OF_EVERY_RUN:
        written = run.records(table)
        assert len(written) > 0, table
        for record in written:
            Draft202012Validator(schemas[table]).validate(record)
    for name in ("rounds", "fit"):
        assert json.loads(answer("validate", "--schema", name)[1]) == schemas[name]
    assert json.loads(answer("validate", "--schema", "rounds", "--as", "json")[1]) == {
        "of": "rounds", "file": None, "schema": schemas["rounds"],
    }  # fmt: skip


def test_what_is_no_record_is_told_with_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (["--schema", "ronds"], "unknown record 'ronds'; did you mean 'rounds'?"),
        (["--schema", "quickstart", "-o", "it.json"], "unknown record 'quickstart'"),
        ([], "a scenario is a file, the name of a shipped one, or a dictionary: name one, or add --schema"),
        (["quickstart", "-o", "it.json"], "--out is for --schema alone"),
    ):
        code, out, err = answer("validate", *words)
        assert (code, out) == (2, "") and err.startswith(f"edgefl: error: {message}") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert answer("validate", "--schema", "-o", "it.json") == (0, "it.json\n", "")
    assert (tmp_path / "it.json").read_text(encoding="utf-8") == answer("validate", "--schema", "scenario")[1]


def test_the_shipped_schema_is_that_of_the_sections() -> None:
    """In a process without the plug-ins of the tests."""
    code = "import json, edgefl.scenario as s; print(json.dumps(s.json_schema(), indent=1, ensure_ascii=False))"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True)
    shipped = library_folder() / "edgefl.schema.json"
    assert shipped.read_text(encoding="utf-8") == done.stdout, "run python tools/pages.py"
    assert process("validate", "--schema").stdout == done.stdout


@pytest.mark.parametrize("name", scenario_names())
def test_shipped_scenarios_name_the_schema(name: str) -> None:
    file = library_folder() / f"{name}.yaml"
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (file.parent / first.partition("=")[2]).resolve() == (library_folder() / "edgefl.schema.json").resolve()


def test_the_schema_finds_a_wrong_field() -> None:
    schema = Draft202012Validator(json.loads((library_folder() / "edgefl.schema.json").read_text(encoding="utf-8")))
    scenario = read_file(library_folder() / "quickstart.yaml", "quickstart").data
    schema.validate(scenario)
    for wrong in ({"trainning": {}}, {"edgefl": 2}, {"training": {"bacth": 8}}, {"schedule": "layerwize"}):
        assert not schema.is_valid({**scenario, **wrong}), wrong
