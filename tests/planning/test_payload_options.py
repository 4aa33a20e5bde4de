"""Payload options: what travels is what is charged, and what is trained is what arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from edgefl_toys import Memory
from tensors import assert_equal_tensors
from torch import Tensor

import edgefl
from edgefl.cost.predict import Predictor
from edgefl.cost.scratch import ScratchTable
from edgefl.errors import ScenarioError
from edgefl.machine.kernel_scratch import kernels, probe
from edgefl.planning.payload_options import PayloadOptions, with_codecs
from edgefl.planning.setup import Setup
from edgefl.planning.versions import final_blocks
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.simulation import Simulation
from edgefl.training import Assignment, Inline
from edgefl.work import Codec
from edgefl.work.update import Update

Tiny = Callable[..., dict[str, Any]]
LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 4}
BOTH = {"down": "int8", "up": {"dtype": "int8", "top_k": "10%"}}
CLIENTS = {"image": 2, "text": 2, "image-text": 1}
PREDICTOR = Predictor(None, "cpu", ScratchTable(kernels("cpu"), partial(probe, device="cpu")))
COSTS = ("peak_memory_bytes", "memory_bytes", "forward_flops", "backward_flops", "compute_seconds")


class Watched(Inline):
    """Keeps every client's task and its report beside doing it."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.clients, "cpu")  # type: ignore[arg-type]
        self.done: list[tuple[Assignment, Update]] = []

    def submit(self, task: Assignment) -> Future[Update]:
        future = super().submit(task)
        if task.client is not None:
            self.done.append((task, future.result()))
        return future


def play(setup: Setup) -> tuple[Simulation, Memory, list[tuple[Assignment, Update]]]:
    journal, executor = Memory(), Watched(setup)
    simulation = Simulation(setup, executor, PREDICTOR, journal)
    simulation.play()
    return simulation, journal, executor.done


@pytest.fixture(scope="module")
def small(tiny: Tiny) -> Tiny:
    """The tiny scenario with five clients."""
    return lambda **sections: tiny(**{"data": {**tiny()["data"], "clients": CLIENTS}, **sections})


@pytest.fixture(scope="module")
def plain(small: Tiny) -> tuple[Simulation, Memory, list[tuple[Assignment, Update]]]:
    return play(compose(load(small(method="fedcola", schedule=LAYERWISE))))


@pytest.fixture(scope="module")
def narrow(small: Tiny) -> tuple[Simulation, Memory, list[tuple[Assignment, Update]]]:
    """FedCola in two stages, everything in int8 and a tenth of each update: models, partners, frozen parts."""
    return play(compose(load(small(method="fedcola", schedule=LAYERWISE, payload=BOTH))))


# what travels is what is charged ------------------------------------------------------------------------------------


def by_client(
    journal: Memory, done: list[tuple[Assignment, Update]]
) -> Iterator[tuple[Mapping[str, Any], Assignment, Update]]:
    """Records in their order beside the tasks of the same client and round."""
    rounds: dict[int, list[tuple[Assignment, Update]]] = {}
    for task, report in done:
        assert task.client is not None
        rounds.setdefault(task.client, []).append((task, report))
    for record in journal.tables["clients"]:
        yield record, *rounds[record["client"]].pop(0)


def test_what_travels_has_the_bytes_of_the_records(narrow: Any) -> None:
    """Uploads as the executor gives them; downloads as it gets them, less what a client has already."""
    simulation, journal, done = narrow
    for record, task, report in by_client(journal, done):
        sent = report.payloads
        assert sum(len(safetensors.torch.save(dict(p))) for p in sent.values()) == record["serialised_upload_bytes"]
        assert {n: sum(t.nbytes for t in p.values()) for n, p in sent.items()} == record["upload_bytes_by_payload"]
        stage = simulation.run.parts.setup.schedule.stage(record["round"])
        received = 0
        for payload in task.work.down:
            # the last aggregation of stage 1 has made every copy of a frozen part old
            items = [i for i in payload.items if stage.is_active(i.name) or record["round"] == 3]
            wire = {n: task.inputs[n] for i in items for n in payload.wire(i)}
            received += len(safetensors.torch.save(wire)) if wire else 0
        assert received == record["serialised_download_bytes"]


def test_bytes_are_a_fraction_and_nothing_else_of_a_cost_changes(plain: Any, narrow: Any) -> None:
    predicted = PREDICTOR.predicted
    for wide, slim in zip(plain[1].tables["clients"], narrow[1].tables["clients"], strict=True):
        assert {f: wide[f] for f in COSTS} == {f: slim[f] for f in COSTS} and abs(slim["memory_error"] or 0) < 1e-3
        assert 0.25 < slim["download_bytes"] / wide["download_bytes"] < 0.3
        # a place is 5 bytes; of a small tensor a tenth is rounded up, and it has a scale besides
        assert 0.125 < slim["upload_bytes"] / wide["upload_bytes"] < 0.17
        assert slim["download_seconds"] < wide["download_seconds"] and slim["energy_joules"] < wide["energy_joules"]
        for way in ("download", "upload"):
            assert sum(slim[f"{way}_bytes_by_part"].values()) == slim[f"{way}_bytes"]
    assert PREDICTOR.predicted == predicted


@pytest.mark.slow(smaller="test_what_travels_has_the_bytes_of_the_records")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_half_the_bytes(small: Tiny, dtype: str) -> None:
    compared = small(method="fedcola", schedule=LAYERWISE, compare={"payload": [{}, {"down": dtype, "up": dtype}]})
    wide, slim = edgefl.profile(compared)["combinations"].values()
    for one, other in zip(slim["totals"], wide["totals"], strict=True):
        assert 2 * one["traffic_bytes"] == other["traffic_bytes"]
    for one, other in zip(slim["rows"], wide["rows"], strict=True):
        for field in ("download_bytes", "upload_bytes"):
            assert 2 * one[field] == other[field]


@pytest.mark.slow(smaller="test_what_travels_has_the_bytes_of_the_records")
def test_final_blocks_travel_as_downloads_do(small: Tiny) -> None:
    schedule = {**LAYERWISE, "rounds": 2, "deliver_final": True}
    simulation, journal, _ = play(compose(load(small(schedule=schedule, payload=BOTH))))
    for record in journal.tables["rounds"]:
        stage, expected = simulation.run.parts.setup.schedule.stage(record["round"]), 0
        for client in range(5):
            work, _ = simulation.run.parts.planner.work(
                simulation.run.parts.setup.kind_of(client), record["round"], stage
            )
            final = final_blocks(work, stage)
            assert final.codec == Codec("int8")
            expected += final.tensor_bytes
        assert record["final_delivery_bytes"] == expected > 0


# what is trained is what arrived ------------------------------------------------------------------------------------


def test_a_frozen_part_is_what_was_decoded_when_it_came(narrow: Any) -> None:
    """In the round that brings it and in the next one, where it doesn't travel; at version 0 it is exact."""
    simulation, journal, done = narrow
    starts: dict[tuple[int, int], Mapping[str, Tensor]] = {}
    for record, task, _ in by_client(journal, done):
        starts[record["client"], record["round"]] = task.work.starting_tensors(task.inputs)
        assert task.work.starting_tensors(task.inputs).keys() == {i.name for p in task.work.down for i in p.items}
    for client in range(5):
        kind = simulation.run.parts.setup.kind_of(client)
        for name, value in starts[client, 4].items():
            address = f"{kind}/{name}"
            if ".blocks.0." in name and address in simulation.state.tensors:
                server = journal.states[3][0][address]
                assert_equal_tensors({address: value}, {address: starts[client, 3][name]})
                assert not torch.equal(value, server) and torch.allclose(value, server, atol=server.abs().max() / 200)


@pytest.mark.slow(smaller="test_a_frozen_part_is_what_was_decoded_when_it_came")
def test_what_was_never_changed_is_exact_where_it_is_frozen(small: Tiny) -> None:
    """A quorum that is missed leaves stage 1 at version 0: its blocks are as they were preinstalled in stage 2."""
    setup = compose(load(small(schedule={**LAYERWISE, "rounds": 2}, payload={"down": "int8"})))
    setup = replace(setup, round=setup.round.model_copy(update={"quorum": 8}))
    _, journal, done = play(setup)
    first = setup.method.initial(setup.seed).tensors
    for record, task, _ in by_client(journal, done):
        for name, value in task.work.starting_tensors(task.inputs).items():
            exact = torch.equal(value, first[f"{record['kind']}/{name}"])
            if record["round"] == 2 and (".blocks.0." in name or ".embedding." in name):
                assert exact and name in task.inputs
            elif value.dim() > 1:  # a vector of zeros or ones is exact in any case
                assert not exact


def test_all_of_every_update_is_the_plain_run_to_the_bit(small: Tiny, plain: Any) -> None:
    options = {"up": {"top_k": "100%"}}
    simulation, journal, _ = play(compose(load(small(method="fedcola", schedule=LAYERWISE, payload=options))))
    assert_equal_tensors(simulation.state.tensors, plain[0].state.tensors)
    assert journal.tables["clients"][0]["upload_bytes"] > plain[1].tables["clients"][0]["upload_bytes"]


def test_the_result_is_another_and_near(plain: Any, narrow: Any) -> None:
    exact = plain[0].state.tensors
    assert not all(torch.equal(t, exact[a]) for a, t in narrow[0].state.tensors.items())
    # in round 1 only the download has been rounded
    wide, slim = (run[1].tables["rounds"][0]["losses"] for run in (plain, narrow))
    assert all(slim[kind] != loss and slim[kind] == pytest.approx(loss, rel=0.02) for kind, loss in wide.items())


def test_aggregation_gets_a_tenth_of_each_update(narrow: Any) -> None:
    """One text client alone moves a tenth of a weight's places; two of them at most a fifth."""
    _, journal, _ = narrow
    moved = journal.states[2][0]["text/text.blocks.0.attn.qkv.weight"] != journal.states[1][0][
        "text/text.blocks.0.attn.qkv.weight"]  # fmt: skip
    # attention is averaged with that of the image-text clients, of which there are two as well
    assert 0.1 <= moved.float().mean() <= 0.41


@pytest.mark.parametrize("round", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_it_goes_on_from_a_checkpoint(narrow: Any, round: int) -> None:
    whole, told, _ = narrow
    journal = Memory()
    simulation = Simulation(whole.run.parts.setup, Watched(whole.run.parts.setup), PREDICTOR, journal)
    simulation.load_data(*told.states[round])
    result = simulation.play()
    assert_equal_tensors(simulation.state.tensors, whole.state.tensors)
    assert result.totals.to_data() == dict(whole.run.progress.totals)
    assert journal.tables["clients"] == [r for r in told.tables["clients"] if r["round"] > round]


def assert_equal(a: Path, b: Path) -> None:
    for table in ("rounds", "clients", "eligibility"):
        assert (a / f"{table}.jsonl").read_text() == (b / f"{table}.jsonl").read_text()
    assert (a / "weights.safetensors").read_bytes() == (b / "weights.safetensors").read_bytes()


@pytest.mark.slow(smaller="test_inline_and_processes_give_the_same_reports")
def test_worker_processes_give_the_same_run(small: Tiny, tmp_path: Path) -> None:
    scenario = small(method="fedcola", schedule=LAYERWISE, payload=BOTH)
    edgefl.run(scenario, out=tmp_path / "inline")
    scenario["executor"] = {"name": "processes", "workers": 2, "device": "cpu"}
    edgefl.run(scenario, out=tmp_path / "processes")
    assert_equal(tmp_path / "inline", tmp_path / "processes")


@pytest.mark.slow(smaller="test_the_result_is_another_and_near")
@pytest.mark.parametrize("payload", [{"down": "int8", "up": "int8"}, {"down": "bfloat16", "up": "float16"}, BOTH])
def test_it_learns(small: Tiny, tmp_path: Path, payload: Any) -> None:
    losses = []
    for name, options in (("plain", {}), ("narrow", payload)):
        scenario = small(
            schedule={"name": "end-to-end", "rounds": 12}, payload=options, training={"batch": 8, "lr": 3e-3}
        )
        run = edgefl.run(scenario, out=tmp_path / name)
        losses.append([r["losses"]["image"] for r in run.records("rounds")])
    wide, slim = losses
    assert wide[0] - wide[-1] > 0.2
    share = 0.5 if isinstance(payload["up"], dict) else 0.9
    assert slim[0] - slim[-1] > share * (wide[0] - wide[-1])


# buffers and tables -------------------------------------------------------------------------------------------------


def test_buffers_travel_as_they_are(small: Tiny) -> None:
    """A running variance of 0 would be no variance any more."""
    setup = compose(load(small(payload=BOTH)))
    work = setup.method.work("image", 1)
    coded = with_codecs(work, setup.payload, {"image/image.norm.weight"}, setup.method)
    assert coded.down[0].codec == Codec("int8", exact=("image.norm.weight",))
    assert coded.up[0].codec == Codec("int8", {"top_k": 0.1}, exact=("image.norm.weight",))
    specs = {n: s for i in coded.up[0].items for n, s in coded.up[0].wire(i).items()}
    assert specs["image.norm.weight"].dtype == "float32" and specs["image.norm.bias:values"].dtype == "int8"
    assert with_codecs(work, PayloadOptions.model_validate({}), (), setup.method) is work


@pytest.fixture(scope="module")
def prototypes(tiny: Tiny, install: Any) -> Callable[..., dict[str, Any]]:
    install(Path(__file__).parents[1] / "plugin")
    data = {**tiny()["data"], "public": 40}
    return lambda **payload: tiny(method="prototypes", data=data, payload=payload)


@pytest.mark.slow(smaller="test_tables_take_no_share_of_an_update")
def test_tables_take_a_dtype(prototypes: Any) -> None:
    simulation, journal, done = play(compose(load(prototypes(down="int8", up="float16"))))
    for record, task, report in by_client(journal, done):
        assert task.inputs["prototypes:values"].dtype == torch.int8
        # what the client keeps never travels
        assert task.inputs["prototypes.own"].dtype == torch.float32
        assert report.payloads["prototypes"]["prototypes.new"].dtype == torch.float16
        classes, width = task.work.down[1].items[0].shape
        assert record["download_bytes_by_payload"]["prototypes"] == classes * width + 4
        assert record["upload_bytes_by_payload"]["prototypes"] == 2 * classes * (width + 1)
    assert simulation.state.tensors["table/prototypes.image"].abs().sum() > 0


def test_tables_take_no_share_of_an_update(prototypes: Any, tmp_path: Path) -> None:
    scenario = prototypes(up={"top_k": "10%"})
    for command in (edgefl.validate, edgefl.profile, lambda s: edgefl.run(s, out=tmp_path / "run")):
        with pytest.raises(ScenarioError, match="method 'prototypes': its payload 'prototypes' sends") as caught:
            command(scenario)
        assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


# bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"down": "flaot16"}, "payload.down: unknown codec 'flaot16'; did you mean 'float16'?"),
        ({"up": "int4"}, "payload.up: unknown codec 'int4'; did you mean 'int8'?"),
        ({"up": {"dtype": "bfloat61", "top_k": "10%"}}, "payload.up.dtype: .*did you mean 'bfloat16'?"),
        ({"up": {"top_k": "0%"}}, "payload.up.top_k: must be more than 0%"),
        ({"up": {"top_k": "110%"}}, "payload.up.top_k: '110%' is too large"),
        ({"up": {"topk": "10%"}}, "payload.up.topk: unknown key 'topk'; did you mean 'top_k'?"),
        ({"down": {"dtype": "int8", "top_k": "10%"}}, "payload.down: top_k is only for up"),
        ({"dwon": "int8"}, "payload.dwon: unknown key 'dwon'; did you mean 'down'?"),
        ("int8", "payload: must be a mapping of fields, not 'int8'"),
    ],
)
def test_a_wrong_option_is_said_in_a_line(tiny: Tiny, payload: Any, said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as caught:
        load(tiny(payload=payload))
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize("payload", [{}, BOTH, {"up": {"dtype": "int8"}}, {"up": "bfloat16"}])
def test_a_resolved_scenario_is_the_same(tiny: Tiny, payload: Any) -> None:
    scenario = load(tiny(payload=payload))
    assert load(scenario.to_data()) == scenario
    compared = load(tiny(compare={"payload.up": ["float32", "int8", {"dtype": "int8", "top_k": 0.1}]}))
    assert [each.payload.codecs()[1] for _, each in compared.combinations()] == [
        None,
        Codec("int8"),
        Codec("int8", {"top_k": 0.1}),
    ]
