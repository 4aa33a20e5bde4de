"""``--plugin FILE``: parts of one's own from the command line, recorded by the run and asked for when it goes on."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from ray_nodes import QUIET, nodes_of
from safetensors.torch import load_file
from tensors import assert_equal_tensors

import edgefl
from edgefl import registry
from edgefl.console import load_commands, main
from edgefl.memo import cache_folder

Call = Callable[..., tuple[int, str, str]]

MINE = '''
from dataclasses import replace

from pydantic import Field
from torch.nn import functional as F

import edgefl
from edgefl.methods import Method
from edgefl.work import Step


@edgefl.register("step", "smooth")
class Smooth(Step):
    """Cross-entropy with smoothed labels."""

    def loss(self, ctx, batch, pattern, pass_):
        logits = ctx.client_model.logits(pattern, batch[pattern])
        return F.cross_entropy(logits, batch["label"], label_smoothing=0.1)


@edgefl.register("method", "mine")
class Mine(Method):
    """FedAvg with smoothed labels."""

    class Options(Method.Options):
        rate: float = Field(0.5, gt=0, le=1, description="share of the mean update that is taken")

    def work(self, kind, round):
        work = super().work(kind, round)
        return replace(work, passes=tuple(replace(p, step="smooth") for p in work.passes))

    def aggregate(self, state, updates):
        return state.with_tensors(self.combine(state, updates, lambda address, cohort: {address: self.options.rate}))
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., dict[str, Any]]) -> Path:
    """A folder with mine.py, mine.yaml, a changed mine.py, and the run of mine.yaml."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(MINE)
    (folder / "changed").mkdir()
    (folder / "changed" / "mine.py").write_text(MINE.replace("0.1", "0.2"))
    data = {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 24, "test": 24}
    model = {"image": {"blocks": 1, "width": 16, "heads": 2}}
    scenario = tiny(data=data, model=model, method={"name": "mine", "rate": 0.5})
    (folder / "mine.yaml").write_text(yaml.safe_dump({"edgefl": 1, **scenario}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main(["run", "mine.yaml", "--plugin", "mine.py", "-o", "run", "--as", "json"])
    assert not ended.value.code
    return folder


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Types a command in the folder: exit code, stdout, stderr."""
    monkeypatch.chdir(folder)

    def answer(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return answer


def test_the_run_records_the_files_hash(folder: Path) -> None:
    recorded = json.loads((folder / "run" / "environment.json").read_text())["plug_ins"]
    assert recorded == [{"file": "mine.py", "sha256": hashlib.sha256(MINE.encode()).hexdigest()}]
    assert str(folder) not in (folder / "run" / "environment.json").read_text()


def test_a_file_is_loaded_for_its_command_alone(call: Call) -> None:
    assert call("validate", "mine.yaml", "--plugin", "mine.py")[0] == 0
    assert "mine" not in registry.names("method")
    code, _, err = call("validate", "mine.yaml")
    assert code == 2 and "unknown method 'mine'" in err
    assert "mine: FedAvg with smoothed labels" in call("parts", "method", "mine", "--plugin", "mine.py")[1]


def test_a_scenario_cannot_name_a_file(call: Call, folder: Path) -> None:
    for line in ("plugin: mine.py", "plug_ins: [mine.py]", "executor: {plugin: mine.py}"):
        (folder / "asks.yaml").write_text(f"edgefl: 1\n{line}\n")
        code, _, err = call("validate", "asks.yaml")
        assert code == 2 and "unknown key" in err


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("none.py", None, "none.py: there is no such file"),
        ("notes.txt", "", "notes.txt: must be a Python file, whose name ends in .py"),
        ("folder.py", ..., "folder.py: this file can't be read: Is a directory"),
        ("mistyped.py", "\nclass A(:\n", "it can't be loaded: SyntaxError: invalid syntax ({file}:2)"),
        ("bytes.py", "\0", "it can't be loaded: "),
        ("raises.py", "def f():\n    return {}['rank']\nf()\n", "it can't be loaded: KeyError: 'rank' ({file}:2)"),
        ("leaves.py", "import sys\nsys.exit(0)\n", "it tried to end the program (SystemExit: 0) ({file}:2)"),
        ("empty.py", "a = 1\n", 'it registers nothing; a part of yours needs a line such as @edgefl.register("method"'),
        ("taken.py", "import edgefl\nedgefl.register('step', 'classify')(int)\n", "is taken by the step of edgefl"),
    ],
)
def test_a_wrong_file_is_one_line(call: Call, folder: Path, name: str, text: Any, says: str) -> None:
    path = folder / name
    if text is ...:
        path.mkdir()
    elif text is not None:
        path.write_text(text)
    code, out, err = call("validate", "mine.yaml", "--plugin", name)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert f"--plugin {name}: " in err and says.format(file=path) in err
    assert not any(module.startswith("edgefl_plug_in_") for module in sys.modules)


def test_a_fault_in_a_file_is_named_with_its_line(call: Call, folder: Path) -> None:
    (folder / "fails.py").write_text(MINE.replace("return F.cross_entropy", "return {}['rank'] or F.cross_entropy"))
    code, _, err = call("run", "mine.yaml", "--plugin", "fails.py", "-o", "fails")
    assert code == 2 and "the plug-in fails.py (" in err
    assert "fails.py:18, in Smooth.loss) failed: KeyError: 'rank'" in err


def test_a_resumed_run_asks_for_the_file_it_began_with(call: Call, folder: Path) -> None:
    resume = ("run", "--resume", "run", "--set", "executor.checkpoints=2")
    sha256 = [hashlib.sha256(p.read_bytes()).hexdigest()[:12] for p in (folder / "mine.py", folder / "changed/mine.py")]
    code, _, err = call(*resume)
    assert code == 2
    assert f"plug-in file mine.py (SHA-256 {sha256[0]}...), which isn't loaded: add --plugin mine.py" in err
    code, _, err = call(*resume, "--plugin", "changed/mine.py")
    assert code == 2 and f"SHA-256 {sha256[0]}... then, {sha256[1]}... now" in err
    assert call(*resume, "--plugin", "mine.py")[0] == 0


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--resume", "run"),
        ("report", "run", "-o", "page.html"),
        ("export", "run", "--to", "figures", "--format", "svg"),
        ("explain", "run", "--round", "1"),
        ("export", "run", "--to", "perfetto"),
        ("export", "run", "--to", "csv", "-o", "tables"),
        ("compare", "run", "run"),
    ],
    ids=lambda words: words[0],
)
def test_a_run_can_be_read_without_the_file(call: Call, command: tuple[str, ...]) -> None:
    code, _, err = call(*command)
    assert (code, "error" in err) == (0, False), err


@pytest.mark.parametrize("command", [("run", "--resume", "run", "--verify"), ("analyse", "run", "--only", "drift")])
def test_what_needs_the_file_asks_for_it(call: Call, command: tuple[str, ...]) -> None:
    code, _, err = call(*command)
    assert code == 2 and "made with the plug-in file mine.py" in err and "add --plugin mine.py" in err
    assert call(*command, "--plugin", "mine.py")[0] == 0


@pytest.mark.slow(smaller="test_a_changed_step_is_predicted_anew")
def test_an_edited_step_is_predicted_anew(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of the new code stands in another file of the cache."""
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "cache"))

    def costs() -> set[str]:
        return {path.name for path in (cache_folder() / "costs").glob("*.sealed")}

    text = MINE.replace("return F.cross", "logits = logits + 1\n        return F.cross")
    (folder / "edited.py").write_text(text)
    for file, grows in (("mine.py", True), ("mine.py", False), ("edited.py", True), ("edited.py", False)):
        before = costs()
        assert call("profile", "mine.yaml", "--plugin", file, "--as", "json")[0] == 0
        assert (costs() > before) is grows


def test_rows_of_a_sweep_belong_to_the_file(call: Call) -> None:
    sweep = ("sweep", "mine.yaml", "--vary", "training.batch=4,8", "-o", "cells")
    assert call(*sweep, "--plugin", "mine.py")[0] == 0
    assert call(*sweep, "--plugin", "mine.py")[0] == 0
    code, _, err = call(*sweep, "--plugin", "changed/mine.py")
    assert code == 2 and "a plug-in file has changed since" in err


def test_every_command_with_a_scenario_or_a_run_takes_the_option() -> None:
    commands: dict[str, Any] = typer.main.get_command(load_commands()).commands  # type: ignore[attr-defined]
    taken = {"SCENARIO", "SCENARIO...", "RUN", "RUN...", "RUN|SCENARIO"}
    arguments = {
        name: {param.metavar for param in command.params if param.param_type_name == "argument"}
        for name, command in commands.items()
    }
    named = {name for name, metavars in arguments.items() if metavars & taken}
    assert {"run", "validate", "profile", "sweep", "fit", "analyse", "compare", "report", "export"} <= named
    lacking = {n for n in named if not any("--plugin" in param.opts for param in commands[n].params)}
    assert not lacking


@pytest.mark.slow(smaller="test_a_file_is_loaded_for_its_command_alone")
def test_workers_load_the_file_too(call: Call, folder: Path) -> None:
    """To the same bits, whatever stands in the file by then."""
    workers = ("--set", "executor.name=processes", "--set", "executor.workers=2")
    code, _, err = call("run", "mine.yaml", "--plugin", "mine.py", "-o", "workers", *workers)
    assert code == 0, err
    first, second = (load_file(folder / name / "weights.safetensors") for name in ("run", "workers"))
    assert_equal_tensors(first, second)


@pytest.mark.slow(smaller="test_a_file_is_loaded_for_its_command_alone")
def test_processes_of_combinations_load_the_file_too(call: Call, folder: Path) -> None:
    """To the same bits as one after the other, also where a combination has workers of its own."""
    data = yaml.safe_load((folder / "mine.yaml").read_text())
    workers = [{"name": "inline", "device": "cpu"}, {"name": "processes", "workers": 1, "device": "cpu"}]
    (folder / "both.yaml").write_text(yaml.safe_dump({**data, "compare": {"executor": workers}}))
    code, _, err = call("run", "both.yaml", "--plugin", "mine.py", "-o", "beside", "--jobs", "2")
    assert code == 0, err
    found = [load_file(path) for path in (folder / "beside").glob("*/weights.safetensors")]
    assert len(found) == 2
    for weights in found:
        assert_equal_tensors(weights, load_file(folder / "run" / "weights.safetensors"))


@pytest.mark.slow(smaller="test_a_file_is_loaded_for_its_command_alone")
@pytest.mark.filterwarnings(*(mark.args[0] for mark in QUIET))
def test_jobs_on_ray_load_the_file_too(call: Call, folder: Path) -> None:
    """To the same bits as one after the other."""
    pytest.importorskip("ray", reason="the extra ray isn't installed")
    data = yaml.safe_load((folder / "mine.yaml").read_text())
    (folder / "seeds.yaml").write_text(yaml.safe_dump({**data, "compare": {"seed": [data["seed"], 77]}}))
    with nodes_of(2) as nodes:
        words = ("--plugin", "mine.py", "-o", "on-ray", "--jobs", "2", "--address", nodes.address)
        code, _, err = call("run", "seeds.yaml", *words)
    assert code == 0, err
    first, second = sorted((folder / "on-ray").glob("*/weights.safetensors"), key=lambda path: "77" in str(path))
    assert_equal_tensors(load_file(first), load_file(folder / "run" / "weights.safetensors"))
    assert second.exists()


MODULE = """
import edgefl, mine

if __name__ == "__main__":
    run = edgefl.run("mine.yaml", out="module", overrides=["executor.name=processes", "executor.workers=2"])
    assert run.is_finished
"""


@pytest.mark.slow(smaller="test_the_run_records_the_files_hash")
def test_workers_import_a_module_that_registers(folder: Path) -> None:
    """A run from Python, and its file is recorded as that of --plugin is."""
    import subprocess

    (folder / "study.py").write_text(MODULE)
    done = subprocess.run([sys.executable, "study.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (load_file(folder / name / "weights.safetensors") for name in ("run", "module"))
    assert_equal_tensors(first, second)
    recorded = [edgefl.read_run(folder / name).environment["plug_ins"] for name in ("run", "module")]
    assert recorded[0] == recorded[1]


@pytest.mark.slow(smaller="test_the_run_records_the_files_hash")
def test_workers_know_the_parts_of_a_script(folder: Path) -> None:
    """Multiprocessing imports a script in its workers, which defines its parts there again."""
    import subprocess

    text = MINE + MODULE.replace("import edgefl, mine", "").replace('"module"', '"script"')
    (folder / "script.py").write_text(text)
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (load_file(folder / name / "weights.safetensors") for name in ("run", "script"))
    assert_equal_tensors(first, second)
