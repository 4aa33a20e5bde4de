"""Real nodes as a simulation's clients: the same weights, what is sent again, and replies that are no updates."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import InProcess, Reply
from safetensors.torch import load as loads
from safetensors.torch import save
from tensors import assert_equal_tensors

import edgefl
from edgefl.deployment.node_round import HELD, OWN
from edgefl.deployment.real_run import play_on_nodes
from edgefl.deployment.transport import Message, NoReply
from edgefl.errors import RunError
from edgefl.results.verify import verify
from edgefl.runs import Run
from edgefl.scenario import load

Scenario = Callable[..., dict[str, Any]]
LAYERWISE = {"method": "fedcola", "schedule": {"name": "layerwise", "stages": 2, "rounds": 4}}
FEW = {"source": "glyphs", "samples": 9, "validation": 8, "test": 8}
EACH_KIND = {**FEW, "clients": {"image": 1, "text": 1, "image-text": 1}, "samples": 24}
IMAGES = {**FEW, "clients": {"image": 3}}
QUIET = {"evaluation": {"every": 100}, "model": {"image": {"blocks": 1, "width": 8, "heads": 2}}}
ONE_ROUND = {"schedule": {"name": "end-to-end", "rounds": 1}, **QUIET}


@dataclass
class Played:
    """A run on nodes of this process: its folder, the transport, and what the server was told."""

    run: Run
    transport: InProcess
    said: list[str] = field(default_factory=list)

    @property
    def outcomes(self) -> list[tuple[int, int, str]]:
        return [(row["round"], row["client"], row["outcome"]) for row in self.run.records("clients")]


def on_nodes(
    raw: dict[str, Any], folder: Path, prepare: Callable[[InProcess], None] = lambda _: None, **more: Any
) -> Played:
    scenario = load(raw)
    clients = {100 + client: client for client in range(sum(scenario.data.clients.values()))}
    transport, said = InProcess(scenario, folder / "nodes", clients), list[str]()
    prepare(transport)

    def on_progress(event: str, facts: Any) -> None:
        if event == "prepare":
            said.append(facts["what"])

    return Played(play_on_nodes(scenario, transport, folder / "real", on_progress, wait=0, **more), transport, said)


def on_node(node: int, reply: Callable[[Message, Reply], Message | NoReply | None]) -> Callable[[InProcess], None]:
    """Let one node answer its works so; it greets as the others."""

    def answer(order: Message, honest: Reply) -> Message | NoReply | None:
        return reply(order, honest) if order.facts["do"] == "train" else honest(order)

    return lambda transport: transport.replies.update({node: answer})


@pytest.fixture(scope="module")
def both(tiny: Scenario, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Played]:
    """A scenario's simulation, and its run on nodes."""
    raw, folder = tiny(**QUIET | {"data": IMAGES, "evaluation": {"every": 1}}), tmp_path_factory.mktemp("both")
    return edgefl.run(raw, out=folder / "simulated"), on_nodes(raw, folder)


def test_weights_are_those_of_the_simulation_to_the_bit(both: tuple[Run, Played]) -> None:
    simulated, played = both
    assert_equal_tensors(played.run.weights(), simulated.weights())
    assert verify(played.run.path).valid and verify(simulated.path).valid
    ours, theirs = played.run.records("clients"), simulated.records("clients")
    assert [row["loss"] for row in ours] == [row["loss"] for row in theirs]
    # the allocator's peak on the node is the predicted one, as in the simulation
    assert [row["measured_peak_memory_bytes"] for row in ours] == [row["measured_peak_memory_bytes"] for row in theirs]
    # what went over the wires is what the records say
    assert played.transport.down == sum(row["carried_download_bytes"] for row in ours)
    assert played.transport.up == sum(row["carried_upload_bytes"] for row in ours)
    assert not played.run.nodes["resent_bytes"].any()
    assert played.transport.most_alive <= 2  # of three replies: the server's memory doesn't grow with its nodes


def test_start_up_and_metering_are_phases_of_their_own_which_a_simulation_has_not(both: tuple[Run, Played]) -> None:
    simulated, played = both
    key = ["round", "client"]
    nodes, clients = played.run.nodes.set_index(key), played.run.clients.set_index(key)
    parts = nodes[[f"{name}_seconds" for name in ("start_up", "storage", "compute", "metering", "transfer")]]
    assert (parts.sum(axis=1) - nodes["round_trip_seconds"]).abs().max() < 1e-9
    assert clients["start_up_seconds"].equals(nodes["start_up_seconds"]) and nodes["start_up_seconds"].min() > 0
    assert clients["metering_seconds"].equals(nodes["metering_seconds"]) and nodes["metering_seconds"].max() > 0
    assert (clients["compute_seconds"] - nodes["storage_seconds"] - nodes["compute_seconds"]).abs().max() < 1e-9
    assert (clients["virtual_seconds"] - nodes["round_trip_seconds"]).abs().max() < 1e-9
    assert not {"start_up_seconds", "metering_seconds"} & {*simulated.clients.columns}
    assert not (simulated.path / "nodes.jsonl").exists() and simulated.nodes.empty


LORA = {"adapter": {"name": "lora", "rank": 4}}
PUBLIC = {"data": {**EACH_KIND, "public": 12}}
SGD = {"training": {"batch": 8, "optimizer": "sgd", "lr": 0.05}}
OTHERS: dict[str, dict[str, Any]] = {
    "fedcola, layerwise": LAYERWISE, "progressive": {"schedule": {"name": "progressive", "stages": 2, "rounds": 4}},
    "elastic": {"schedule": {"name": "elastic", "stages": 2, "rounds": 2}},
    "heterofl": {"schedule": {"name": "heterofl", "widths": [1, 0.5], "rounds": 2}},
    "flexlora": {**LORA, "schedule": {"name": "flexlora", "ranks": [4, 1], "rounds": 2}}, "fedavg, lora": LORA,
    "mezo": {"method": "mezo", "training": {"batch": 8, "optimizer": "mezo", "lr": 5e-4, "epsilon": 1e-3}},
    "pmcmfl, multiway": {
        "method": "pmcmfl", "model": {"multiway": {"blocks": 2, "width": 16, "heads": 2, "tokens": 12}},
        "data": {**EACH_KIND, "tasks": {"image-text": "classify"}},
    },
    "fednova": {"method": "fednova", **SGD}, "scaffold": {"method": "scaffold", **SGD},
    "feddyn": {"method": "feddyn", **SGD}, "qfedavg": {"method": "qfedavg", **SGD},
    **{name: {"method": name} for name in ("ditto", "fedbabu", "fedper", "fedprox", "depthfl", "fedcola-mat")},
    **{name: {"method": name, **LORA} for name in ("fedex-lora", "ffa-lora", "flora", "rolora")},
    **{name: {"method": {"name": name, "pairs": 10, "public_batch": 4}, **PUBLIC}
       for name in ("creamfl", "reamfl-iot", "fedmd", "fedet", "fedgems")},
}  # fmt: skip


@pytest.mark.slow(smaller="test_weights_are_those_of_the_simulation_to_the_bit")
@pytest.mark.parametrize("name", OTHERS)
def test_every_method_and_schedule_has_the_weights_of_the_simulation_or_is_refused(
    tiny: Scenario, tmp_path: Path, name: str
) -> None:
    raw = tiny(**{"data": EACH_KIND, "evaluation": {"every": 100}, **OTHERS[name]})
    simulated = edgefl.run(raw, out=tmp_path / "simulated")
    played = on_nodes(raw, tmp_path)
    assert {outcome for *_, outcome in played.outcomes} == {"finished"}, played.said
    assert_equal_tensors(played.run.weights(), simulated.weights())
    assert verify(played.run.path).valid


def test_a_node_that_lost_its_copies_gets_them_again(tiny: Scenario, tmp_path: Path) -> None:
    sections = {**LAYERWISE, "data": IMAGES, "evaluation": {"every": 100}}
    seen = set[int]()

    def forget(order: Message, honest: Reply) -> Message | NoReply | None:
        if (seed := order.facts["assignment"]["seed"]) not in seen:  # a round's first order
            held = tmp_path / "nodes/101" / HELD
            if held.exists():
                held.write_bytes(b"damaged") if len(seen) % 2 else held.unlink()
        seen.add(seed)
        return honest(order)

    simulated = edgefl.run(tiny(**sections), out=tmp_path / "simulated")
    played = on_nodes(tiny(**sections), tmp_path, on_node(101, forget))
    assert_equal_tensors(played.run.weights(), simulated.weights())
    again = played.run.nodes[played.run.nodes["resent_bytes"] > 0]
    assert again["client"].unique().tolist() == [1] and again["round"].tolist() == [4]
    assert played.transport.down == (
        played.run.clients["carried_download_bytes"].sum() + played.run.nodes["resent_bytes"].sum()
    )
    assert verify(played.run.path).valid


def test_what_a_client_keeps_stays_on_its_node(tiny: Scenario, tmp_path: Path) -> None:
    """SCAFFOLD's control variates; the simulation's server holds them for its clients."""
    training = {"batch": 8, "optimizer": "sgd", "lr": 0.05}
    sections = {"method": "scaffold", "training": training, "data": IMAGES, **QUIET}
    simulated = edgefl.run(tiny(**sections), out=tmp_path / "simulated")
    played = on_nodes(tiny(**sections), tmp_path)
    assert_equal_tensors(played.run.weights(), simulated.weights())
    kept = loads((tmp_path / "nodes/100" / OWN).read_bytes())
    assert kept and not (played.run.path / "kept").exists()


def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{name}.more": tensor.clone() for name, tensor in tensors.items()}


def changed(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[..., Any]:
    """A node that changes what it sends."""

    def reply(order: Message, honest: Reply) -> Message | NoReply | None:
        update = honest(order)
        assert isinstance(update, Message)
        return replace(update, payloads=tuple(save(change(loads(body))) for body in update.payloads))

    return reply


def with_facts(**facts: Any) -> Callable[..., Any]:
    """A node that says other facts."""

    def reply(order: Message, honest: Reply) -> Message | NoReply | None:
        update = honest(order)
        assert isinstance(update, Message)
        return replace(update, facts={**update.facts, **facts})

    return reply


def of_dtype(name: str) -> bytes:
    """A file of safetensors with two bytes of a dtype that torch doesn't read."""
    header = json.dumps({"a": {"dtype": name, "shape": [2], "data_offsets": [0, 2]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(2)


REFUSED = [
    (changed(lambda tensors: {name: torch.stack([tensor, tensor]) for name, tensor in tensors.items()}), "oversized"),
    (changed(lambda tensors: tensors | renamed(tensors)), "oversized"),
    (changed(lambda tensors: {n: t.reshape(-1) for n, t in tensors.items()}), "wrong shape"),
    (changed(lambda tensors: {name: tensor * torch.nan for name, tensor in tensors.items()}), "not finite"),
    (changed(lambda tensors: {name: tensor.half() for name, tensor in tensors.items()}), "wrong dtype"),
    (changed(lambda tensors: dict(list(tensors.items())[1:])), "truncated"),
    (with_facts(seed=1), "replayed"),
]
LOST = [
    (lambda order, honest: None, "late", "no reply within"),
    (lambda order, honest: NoReply("the node is unavailable"), "dropped", "the node is unavailable"),
    (lambda order, honest: Message({"error": "it runs edgefl 0.0.1"}), "dropped", "it runs edgefl 0.0.1"),
    (lambda order, honest: Message({"a": 1}), "dropped", "its report: field 'start_up_seconds' is missing"),
    (with_facts(loss="low"), "dropped", "its report: field 'loss'"),
    (with_facts(lacks=["model.secret"]), "dropped", "it lacks 'model.secret', which it wasn't asked for"),
    (lambda order, honest: replace(honest(order), payloads=(b"nonsense",)), "dropped", "isn't safetensors"),
    (lambda order, honest: replace(honest(order), payloads=(of_dtype("F8_E8M0"),)), "dropped", "isn't safetensors"),
    (lambda order, honest: replace(honest(order), payloads=()), "dropped", "it sent 0 payloads of 1"),
]


def test_hostile_replies_never_reach_the_weights_and_are_told_with_the_node(tiny: Scenario, tmp_path: Path) -> None:
    """Two clients are honest: the weights are the mean of what they sent, by hand."""
    hostile = [(reply, "rejected", f"is refused: {reason}") for reply, reason in REFUSED] + LOST
    everyone = range(len(hostile) + 2)
    raw = tiny(data={**IMAGES, "clients": {"image": len(everyone)}}, **ONE_ROUND)
    honest: list[dict[str, torch.Tensor]] = []

    def note(order: Message, reply: Reply) -> Message | NoReply | None:
        update = reply(order)
        assert isinstance(update, Message)
        honest.append(loads(update.payloads[0]))
        return update

    def prepare(transport: InProcess) -> None:
        for client, reply in enumerate([*(reply for reply, *_ in hostile), note, note]):
            on_node(100 + client, reply)(transport)

    played = on_nodes(raw, tmp_path, prepare, patience=60.0)
    expected = [outcome for _, outcome, _ in hostile] + ["finished"] * 2
    assert played.outcomes == [(1, client, expected[client]) for client in everyone]
    for client, (_, _, said) in enumerate(hostile):
        [line] = [each for each in played.said if f"client {client}, node {100 + client}" in each]
        assert said in line
    samples = played.run.clients.set_index("client")["samples"]
    shares = [float(samples[client] / samples[[*everyone[-2:]]].sum()) for client in everyone[-2:]]
    mean = {f"image/{name}": sum(s * u[name] for s, u in zip(shares, honest, strict=True)) for name in honest[0]}
    assert_equal_tensors(played.run.weights(), mean, atol=2e-7)
    assert verify(played.run.path).valid


def test_seconds_that_a_node_says_fit_into_its_round_trip(tiny: Scenario, tmp_path: Path) -> None:
    reply = with_facts(start_up_seconds=-1.0, storage_seconds=1e9, compute_seconds=float("nan"))
    played = on_nodes(tiny(data=IMAGES, **ONE_ROUND), tmp_path, on_node(101, reply))
    row = played.run.nodes.set_index("client").loc[1]
    assert (row["start_up_seconds"], row["compute_seconds"]) == (0.0, 0.0)
    assert row["storage_seconds"] == row["round_trip_seconds"] and verify(played.run.path).valid


def test_a_client_whose_node_comes_back_takes_part_again(tiny: Scenario, tmp_path: Path) -> None:
    def restart(transport: InProcess) -> None:
        def die(order: Message, honest: Reply) -> NoReply:
            transport.gone.add(101)
            transport.clients[201] = 1
            return NoReply("the node is unavailable")

        on_node(101, die)(transport)

    played = on_nodes(tiny(data=IMAGES, **QUIET), tmp_path, restart)
    assert [row for row in played.outcomes if row[1] == 1] == [(1, 1, "dropped"), (2, 1, "finished")]
    assert played.run.nodes.loc[lambda rows: rows["client"] == 1, "node"].tolist() == ["101", "201"]


def test_no_node_is_an_error(tiny: Scenario, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no node has come within 0 s"):
        on_nodes(tiny(data=IMAGES), tmp_path, lambda transport: transport.clients.clear())


def test_a_real_run_is_read_as_any_other_and_its_energy_is_not_known(both: tuple[Run, Played], tmp_path: Path) -> None:
    simulated, real = both[0], both[1].run
    assert real.result.totals.energy_joules is None
    assert {row["energy_joules"] for row in real.records("clients") + real.records("rounds")} == {None}
    compared = edgefl.compare([simulated.path, real.path]).to_data()
    assert {each["axis"] for each in compared["equal"]} == {"virtual_seconds", "bytes"}
    assert "energy, J" in real._repr_html_()
    for form in ("csv", "perfetto"):
        assert edgefl.export(real.path, form, tmp_path / form).files
    page = Path(edgefl.report(real.path, out=tmp_path / "page.html").file)
    assert page.stat().st_size > 10_000


def test_an_unfinished_run_on_real_devices_does_not_go_on_as_a_simulation(tiny: Scenario, tmp_path: Path) -> None:
    def stop(order: Message, honest: Reply) -> Message | NoReply | None:
        if len(list((tmp_path / "real" / "checkpoints").glob("round-*"))):
            raise KeyboardInterrupt
        return honest(order)

    with pytest.raises(KeyboardInterrupt):
        on_nodes(tiny(data=IMAGES, **QUIET), tmp_path, on_node(101, stop))
    with pytest.raises(RunError, match="is of real devices, which a simulation can't go on for"):
        edgefl.run(resume=tmp_path / "real")
