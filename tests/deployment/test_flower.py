"""Flower as the transport: what comes from it, and runs of exported apps on SuperNodes of this machine, over TLS."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flower_processes import Federation, make_environment, with_version
from people_notes import sections, tables_of_people
from tensors import assert_equal_tensors

import edgefl
from edgefl.deployment.flower import unpack, wire_reply
from edgefl.deployment.transport import Message, NoReply
from edgefl.results.verify import verify

Scenario = Callable[..., dict[str, Any]]


def content(json: str, **arrays: bytes) -> Any:
    """Flower's records, as far as they are read."""
    payloads = {name: SimpleNamespace(data=data) for name, data in arrays.items()}
    return SimpleNamespace(config_records={"facts": {"json": json}}, array_records={"payloads": payloads})


def reply(content: Any = None, error: Any = None) -> Any:
    return SimpleNamespace(content=content, error=error, has_error=lambda: error is not None)


@pytest.mark.parametrize(("given", "said"), [
    (reply(content('{"a": 1}', b=b"2", a=b"1")), Message({"a": 1}, (b"1", b"2"))),
    (reply(error=SimpleNamespace(code=5, reason=None)), NoReply("Flower's error 5")),
    (reply(error=SimpleNamespace(code=2, reason="Traceback\nKeyError\n")), NoReply("Flower's error 2: KeyError")),
    (reply(content("[1]")), NoReply("its reply isn't one of edgefl's: TypeError: [1] where facts are to be")),
    (reply(SimpleNamespace(config_records={})), NoReply("its reply isn't one of edgefl's: KeyError: 'facts'")),
])  # fmt: skip
def test_what_comes_from_flower_is_a_message_or_says_why_not(given: Any, said: object) -> None:
    assert wire_reply(given) == said


def test_facts_that_are_no_json_are_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        unpack(content("nonsense"))


@pytest.fixture(scope="module")
def environment(tiny: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flower")
    edgefl.export(tiny(), "flower", folder / "app")
    made, why_not = make_environment(folder / "environment", folder / "app")
    if made is None:
        pytest.skip(why_not)
    return made


@pytest.fixture(scope="module")
def federation(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(environment, tmp_path_factory.mktemp("federation")) as federation:
        for client in range(3):
            federation.node(f"node {client}", node_config(federation, client))
        yield federation


def node_config(federation: Federation, client: int) -> str:
    return f'client={client} folder="{federation.folder / f"copies-{client}"}"'


LAYERWISE = {"method": "fedcola", "schedule": {"name": "layerwise", "stages": 2, "rounds": 3}}
KINDS = {"source": "glyphs", "clients": {"image": 1, "text": 1, "image-text": 1}, "samples": 40, "validation": 40,
         "test": 40}  # fmt: skip


@pytest.mark.slow(smaller="test_what_comes_from_flower_is_a_message_or_says_why_not")
def test_weights_of_real_nodes_are_those_of_the_simulation_to_the_bit(
    tiny: Scenario, federation: Federation, environment: Path, tmp_path: Path
) -> None:
    """A fourth node has another version: it is told on the server, and isn't used."""
    other = with_version(environment, "0.0.1", tmp_path / "other")
    federation.node("other", node_config(federation, 0).replace("copies", "other"), **other)
    scenario = tiny(data=KINDS, **LAYERWISE)
    simulated = edgefl.run(scenario, out=tmp_path / "simulated")
    edgefl.export(scenario, "flower", tmp_path / "app")
    process = federation.run(tmp_path / "app", output=str(tmp_path / "real"), wait=120.0)
    log, _ = process.communicate(timeout=500)
    federation.kill("other")
    assert process.returncode == 0 and "round 3: 3 of 3 updates have arrived" in log, log
    assert f"it runs edgefl 0.0.1, the server {edgefl.__version__}" in log
    real = edgefl.read_run(tmp_path / "real")
    assert_equal_tensors(real.weights(), simulated.weights())
    peaks = [row["measured_peak_memory_bytes"] for row in simulated.records("clients")]
    assert [row["measured_peak_memory_bytes"] for row in real.records("clients")] == peaks and any(peaks)
    assert verify(real.path).valid and not real.nodes["resent_bytes"].any()
    assert (real.nodes["start_up_seconds"] > 0.5).all()  # each message has a process that imports torch


@pytest.mark.slow(smaller="test_what_comes_from_flower_is_a_message_or_says_why_not")
def test_a_node_that_is_killed_is_dropped_and_takes_part_again_with_a_new_id(
    tiny: Scenario, federation: Federation, tmp_path: Path
) -> None:
    schedule = {"name": "end-to-end", "rounds": 5}
    edgefl.export(tiny(data=KINDS, schedule=schedule), "flower", tmp_path / "app")
    log, began = [], time.monotonic()
    with federation.run(tmp_path / "app", output=str(tmp_path / "real"), wait=120.0, patience=240.0) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            if "round 1: 3 of 3 updates" in line:
                federation.kill("node 2")
            if "round 2: 2 of 3 updates" in line:
                federation.node("node 2", node_config(federation, 2))
            assert time.monotonic() - began < 500, log
    assert process.returncode == 0, log
    real = edgefl.read_run(tmp_path / "real")
    outcomes = {row["round"]: row["outcome"] for row in real.records("clients") if row["client"] == 2}
    assert outcomes[1] == "finished" and outcomes[2] == "dropped" and outcomes[5] == "finished", log
    others = [row["outcome"] for row in real.records("clients") if row["client"] != 2]
    assert others == ["finished"] * 10
    nodes = real.nodes.set_index(["client", "round"])["node"]
    assert nodes[2, 1] == nodes[2, 2] != nodes[2, 5]
    assert verify(real.path).valid


@pytest.mark.slow(smaller="test_what_comes_from_flower_is_a_message_or_says_why_not")
def test_nodes_with_tables_of_their_own_train_what_one_table_of_all_trains(
    tiny: Scenario, environment: Path, tmp_path: Path
) -> None:
    scenario = tiny(**sections(tmp_path))
    simulated = edgefl.run(scenario, out=tmp_path / "simulated")
    edgefl.export(scenario, "flower", tmp_path / "app")
    with Federation(environment, tmp_path / "federation") as federation:
        for person, table in tables_of_people(tmp_path).items():
            federation.node(f"node {person}", f'{node_config(federation, person)} data="{table}"')
        with federation.run(tmp_path / "app", output=str(tmp_path / "real"), wait=120.0) as process:
            log, _ = process.communicate(timeout=400)
    assert process.returncode == 0 and "round 2: 3 of 3 updates have arrived" in log, log
    real = edgefl.read_run(tmp_path / "real")
    assert_equal_tensors(real.weights(), simulated.weights())
    assert real.clients["samples"].tolist() == [20, 25, 30] * 2 and verify(real.path).valid
