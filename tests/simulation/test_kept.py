"""What clients keep in real runs: on disk, in no checkpoint, and the same after a resume from any of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_games import Games
from records_of_tests import ENVIRONMENT
from tensors import assert_equal_tensors

import edgefl
from edgefl import registry
from edgefl.errors import RunError
from edgefl.results.verify import verify
from edgefl.runs import Run, RunDirectory, checkpoints, read_run
from edgefl.runs.kept import FACTS, ROWS, Index
from edgefl.work import Work

Tiny = Callable[..., dict[str, Any]]
ROUNDS = 4


def scenario(tiny: Tiny, **executor: Any) -> dict[str, Any]:
    """FedMD: every client keeps its model; two of four train in each round."""
    made = tiny(
        method={"name": "fedmd", "pairs": 10, "public_batch": 4}, schedule={"name": "end-to-end", "rounds": ROUNDS},
        round={"cohort": 2}, executor={"name": "inline", "device": "cpu", "checkpoints": 1, **executor},
    )  # fmt: skip
    data = {"clients": {"image": 2, "text": 2}, "samples": 16, "public": 20, "test": 20, "validation": 20}
    return {**made, "data": {**made["data"], **data}}


@pytest.fixture(scope="module")
def whole(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with all of its checkpoints."""
    return edgefl.run(scenario(tiny, checkpoints=ROUNDS), out=tmp_path_factory.mktemp("kept") / "run")


def content(folder: Path) -> dict[str, bytes]:
    """The files on which a resumed run and an uninterrupted one must agree."""
    tables = ("rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "weights.safetensors", "result.json")
    last = checkpoints.name(ROUNDS)
    paths = [folder / name for name in tables] + [folder / "checkpoints" / last / "state.safetensors"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in [*paths, *(folder / "kept").iterdir()]}


def unfinished(run: Run, tmp_path: Path, round: int) -> Path:
    """A copy of the run as it was killed after the checkpoint of ``round``; later kept values are still there."""
    folder = tmp_path / f"run-{round}"
    shutil.copytree(run.path, folder)
    (folder / "result.json").unlink()
    for later in range(round + 1, ROUNDS + 1):
        shutil.rmtree(folder / "checkpoints" / checkpoints.name(later))
    return folder


def test_values_lie_in_files_to_which_checkpoints_refer(whole: Run) -> None:
    sizes = {path.name: path.stat().st_size for path in (whole.path / "kept").iterdir()}
    needed, held = set[str](), dict[int, int]()
    for round in range(1, ROUNDS + 1):
        manifest = checkpoints.manifest_of(whole.path / "checkpoints" / checkpoints.name(round))
        files = manifest["state"]["kept"]["files"]
        assert all(sizes[name] == size for name, size in files.items())
        needed |= files.keys()
        trained = [c for c in whole.records("clients") if c["round"] == round and c["outcome"] == "finished"]
        held |= {c["client"]: round for c in trained}
        (written,) = [name for name in files if name.startswith(checkpoints.name(round))]
        assert sizes[written] >= sum(
            value.nbytes for c in trained for value in whole.client_tensors()[c["client"]].values()
        )
    assert needed == sizes.keys()
    assert whole.client_tensors().keys() == held.keys()
    parameters = {name for name in whole.client_tensors()[0] if name.startswith("image.")}
    assert parameters and not parameters & set(checkpoints.latest(whole.path / "checkpoints")[1])  # type: ignore[index]


@pytest.mark.parametrize("round", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_run_goes_on_from_any_checkpoint_to_the_byte(whole: Run, tmp_path: Path, round: int) -> None:
    folder = unfinished(whole, tmp_path, round)
    with RunDirectory.open(folder) as directory:
        directory.rewind(round)
        of = checkpoints.manifest_of(folder / "checkpoints" / checkpoints.name(round))["state"]["kept"]["files"]
        assert of.keys() <= {path.name for path in (folder / "kept").iterdir()}, "what it needs is there"
    resumed = edgefl.run(resume=folder)
    expected, found = content(whole.path), content(folder)
    assert [name for name in expected if found.get(name) != expected[name]] == []
    assert found.keys() == expected.keys()
    assert verify(folder)["valid"]
    assert_equal_tensors(dict(resumed.client_tensors()), dict(whole.client_tensors()))


@pytest.mark.slow(smaller="test_values_lie_in_files_to_which_checkpoints_refer")
def test_a_finished_run_keeps_what_its_last_checkpoint_needs(tiny: Tiny, whole: Run, tmp_path: Path) -> None:
    run = edgefl.run(scenario(tiny), out=tmp_path / "run")
    state = checkpoints.manifest_of(run.path / "checkpoints" / checkpoints.name(ROUNDS))["state"]
    files = {f"kept/{path.name}" for path in (run.path / "kept").iterdir()}
    assert files == {f"kept/{name}" for name in state["kept"]["files"]}
    assert {n for n in json.loads((run.path / "files.json").read_text())["files"] if "/" in n} == files
    assert_equal_tensors(dict(run.client_tensors()), dict(whole.client_tensors()))
    assert verify(run.path)["valid"]
    (run.path / "result.json").unlink()
    assert_equal_tensors(dict(edgefl.run(resume=run.path).client_tensors()), dict(whole.client_tensors()))


def test_a_changed_file_is_told_of_and_the_checkpoint_before_it_is_used(whole: Run, tmp_path: Path) -> None:
    folder = unfinished(whole, tmp_path, 3)
    (newest,) = (folder / "kept").glob("round-000003-*")
    right = newest.read_bytes()
    newest.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    (files,) = [check for check in verify(folder)["runs"]["tiny"]["checks"] if check["name"] == "files"]
    assert files["broken"] == 1 and f"kept/{newest.name} has changed" in files["first"]["values"]["difference"]
    with pytest.warns(RuntimeWarning, match=f"round-000003 is damaged and is skipped: kept/{newest.name} has changed"):
        edgefl.run(resume=folder)
    assert content(folder) == content(whole.path) and verify(folder)["valid"]
    next((folder / "kept").iterdir()).unlink()
    (files,) = [check for check in verify(folder)["runs"]["tiny"]["checks"] if check["name"] == "files"]
    assert files["broken"] == 1 and "is missing" in files["first"]["values"]["difference"]
    with pytest.raises(RunError, match="is finished, but kept/round-.*is missing"):
        edgefl.run(resume=folder)


@pytest.mark.slow(smaller="test_values_lie_in_files_to_which_checkpoints_refer")
@pytest.mark.parametrize("policy", ["synchronous", "buffered"])
def test_workers_leave_the_same_files(tiny: Tiny, tmp_path: Path, policy: str) -> None:
    found = []
    for name, executor in (("one", {}), ("two", {"name": "processes", "workers": 2})):
        made = scenario(tiny, **executor)
        edgefl.run({**made, "round": {"cohort": 2, "policy": policy}}, out=tmp_path / name)
        found.append(content(tmp_path / name))
    assert found[0] == found[1]


class Sometimes(registry.get("method", "fedavg")):  # type: ignore[misc]
    """FedAvg whose clients keep their blocks, but not in round 2."""

    def work(self, kind: str, round: int) -> Work:
        """Blocks stay on the client; what isn't kept travels."""
        work = super().work(kind, round)
        if round == 2:
            return work
        keep = tuple(name for name in work.trainable if ".blocks." in name)
        return replace(work, keep=keep, up=tuple(p.only(lambda i: i.name not in keep) for p in work.up))


def test_a_value_that_a_work_does_not_keep_is_there_for_a_later_one(tiny: Tiny) -> None:
    """Under a layer-wise schedule: block 2 isn't attached at first, and block 1 doesn't train at last."""
    games = Games(tiny)
    data = {**tiny()["data"], "clients": {"image": 2}, "samples": 16}
    made = games.setup(data=data, schedule={"name": "layerwise", "stages": 2, "rounds": 4})
    setup = replace(made, method=Sometimes(made.method.options, made.method.setting))
    whole, told = games.real(setup)
    folder, at = told.kept_folder, {}
    for round, (tensors, state) in told.states.items():
        at[round] = dict(Index.from_data(folder, tensors[ROWS], state[FACTS]).clients[0].tensors())
    first, second = ({n for n in at[4] if f".blocks.{block}." in n} for block in (0, 1))
    assert first and second and at[4].keys() == first | second and at[1].keys() == at[2].keys() == first
    assert_equal_tensors(at[2], at[1])  # kept through round 2, in which nobody kept anything
    assert_equal_tensors({n: at[4][n] for n in first}, at[1])  # and through stage 2, in which block 1 is frozen
    assert all(not torch.equal(at[4][n], at[3][n]) for n in second if n.endswith("qkv.weight"))
    resumed, journal = games.real(setup, since=(2, *told.states[2]))
    assert_equal_tensors(resumed.state.tensors, whole.state.tensors)
    again = Index.from_data(folder, journal.states[4][0][ROWS], journal.states[4][1][FACTS])
    assert_equal_tensors(again.clients[0].tensors(), at[4])


@pytest.mark.slow(smaller="test_values_lie_in_files_to_which_checkpoints_refer")
def test_a_run_without_a_checkpoint_has_nothing_to_show(tmp_path: Path) -> None:
    made = {"scenario_yaml": "name: a\nseed: 1\n", "environment": ENVIRONMENT, "models": {}}
    RunDirectory.create(tmp_path / "run", **made).close()  # type: ignore[arg-type]
    assert dict(read_run(tmp_path / "run").client_tensors()) == {}
