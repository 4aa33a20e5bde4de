"""A codec of one's own: the page's, whose bytes are those of the files, and whose values a loop decodes too."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from edgefl_toys import Memory
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors
from torch import Tensor

import edgefl
from edgefl import registry
from edgefl.cost.predict import Predictor
from edgefl.errors import EdgeflError, MethodError, PluginError
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.simulation import Simulation
from edgefl.training import Assignment, Inline
from edgefl.work import Codec, Item, Payload, RegisteredCodec, Work
from edgefl.work.update import Update

pytestmark = pytest.mark.usefixtures("mylab")


@pytest.fixture(autouse=True)
def _own() -> Iterator[None]:
    yield
    if PARTS:
        PARTS.clear()
        registry.forget()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.booleans(), st.integers(0, 2**31))
def test_signs_and_scale_are_those_of_a_loop_and_so_are_the_bytes(shape: list[int], update: bool, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    items = (Item("w", tuple(shape), "float32", "k/w"), Item("n", (3,), "int64", "k/n"))
    payload = Payload("model", items, codec=Codec("signs"))
    tensors = {"w": torch.randn(shape, generator=draw), "n": torch.arange(3)}
    base = {"w": torch.randn(shape, generator=draw)} if update else {}
    wire = payload.encode_tensors(tensors, base)
    assert len(safetensors.torch.save(wire)) == payload.serialised_bytes
    assert sum(t.nbytes for t in wire.values()) == payload.tensor_bytes
    arrived = payload.decode_tensors(wire, base)
    assert_equal_tensors(arrived["n"], tensors["n"])
    count = int(np.prod(shape))
    if count == 1:  # a single number travels as it is
        assert_equal_tensors(arrived["w"], tensors["w"])
        return
    assert payload.bytes_of(items[0]) == -(-count // 8) + 4
    change = (tensors["w"] - base["w"] if update else tensors["w"]).numpy().ravel()
    size = float(np.abs(change).mean())
    expected = [size if number >= 0 else -size for number in change]
    start = base["w"].numpy().ravel() if update else np.zeros(count, np.float32)
    np.testing.assert_allclose(arrived["w"].numpy().ravel(), start + expected, rtol=1e-5, atol=1e-6)


class Weighed(Inline):
    """Writes what each client sends as a safetensors file, beside training it."""

    def __init__(self, setup: Any) -> None:
        super().__init__(setup.clients, "cpu")
        self.files: dict[int, int] = {}
        self.tensors: dict[int, int] = {}
        self.works: dict[int, Work] = {}

    def submit(self, task: Assignment) -> Future[Update]:
        future = super().submit(task)
        if task.client is not None:
            payloads = future.result().payloads
            self.files[task.client] = sum(len(safetensors.torch.save(dict(p))) for p in payloads.values())
            self.tensors[task.client] = sum(t.nbytes for p in payloads.values() for t in p.values())
            self.works[task.client] = task.work
        return future


@pytest.mark.slow(smaller="test_signs_and_scale_are_those_of_a_loop_and_so_are_the_bytes")
def test_a_runs_bytes_are_those_of_the_files(mylab: Path) -> None:
    setup = compose(load(mylab / "robust.yaml", ["schedule.rounds=1"]))
    with Weighed(setup) as executor:
        journal = Memory()
        simulation = Simulation(setup, executor, Predictor(), journal)
        simulation.play()
        rows = journal.tables["clients"]
        assert {row["client"]: row["upload_bytes"] for row in rows} == executor.tensors
        assert {row["client"]: row["serialised_upload_bytes"] for row in rows} == executor.files and len(rows) == 8
        (form,) = {work.form for work in executor.works.values()}
        assert {p.codec.name for p in form.up if p.codec} == {"signs"}
        assert all(Work.decode(work.encode()) == work for work in executor.works.values())


@pytest.mark.slow(smaller="test_inline_and_processes_give_the_same_reports")
def test_what_is_sent_and_trained_is_the_same_in_workers(mylab: Path, tmp_path: Path) -> None:
    inline = edgefl.run(mylab / "robust.yaml", out=tmp_path / "inline")
    workers = ["executor={name: processes, workers: 2, device: cpu}"]
    other = edgefl.run(mylab / "robust.yaml", out=tmp_path / "workers", overrides=workers)
    assert_equal_tensors(other.weights(), inline.weights())
    assert inline.records("clients")[0]["upload_bytes"] < inline.records("clients")[0]["download_bytes"] / 8


def test_a_codec_that_sends_something_else_than_it_said_is_named() -> None:
    class Liar(RegisteredCodec):
        def wire(self, shape: Any, dtype: str) -> Any:
            return {":half": (shape, "float16")}

        def encode(self, value: Tensor, base: Tensor | None) -> Any:
            return {":half": value.double()}

        def decode(self, wire: Any, shape: Any, dtype: torch.dtype, base: Tensor | None) -> Tensor:
            return wire[":half"].double()

    edgefl.register("codec", "liar")(Liar)
    with pytest.raises(
        MethodError, match=r"'liar'.* encodes 'w' as :half: float64 \[4\], where its wire\(\) says :half: fl"
    ):
        Codec("liar").encode("w", torch.ones(4))
    with pytest.raises(MethodError, match=r"'liar'.* decodes 'w' as float64 \[4\], not float32 \[4\]"):
        Codec("liar").decode("w", (4,), torch.float32, {"w:half": torch.ones(4, dtype=torch.float16)}, None)
    with pytest.raises(PluginError, match="has no needs_base, applies, wire, encode, decode"):
        edgefl.register("codec", "odd")(type("Odd", (), {"Options": RegisteredCodec.Options}))


def test_its_fields_are_checked_and_it_stays_out_of_what_it_cannot_do(mylab: Path) -> None:
    base = mylab / "robust.yaml"
    for override, said in (
        ("payload.up.scale=median", "payload.up.scale: must be 'mean' or 'max', not 'median'"),
        ("payload.up.scael=max", "unknown key 'scael'; did you mean 'scale'"),
        ("payload.up=sings", "payload.up.dtype: unknown codec 'sings'; did you mean 'signs'"),
        ("payload.up=3", "payload.up: .*a codec is a name, or a mapping"),
    ):
        with pytest.raises(EdgeflError, match=said):
            load(base, [override])
    assert load(base).to_data()["payload"] == {"down": "float32", "up": {"dtype": "signs", "scale": "mean"}}
    assert load(base, ["payload={up: signs, down: signs}"]).to_data()["payload"] == {"down": "signs", "up": "signs"}
    part = registry.get("codec", "signs")
    edgefl.register("codec", "changes")(
        type("Changes", (part,), {"needs_base": True, "Options": RegisteredCodec.Options})
    )
    with pytest.raises(EdgeflError, match="payload.down: codec changes is only for up"):
        load(base, ["payload={down: changes}"])
    # fit tries no other codec in its place
    edgefl.fit(base, device="raspberry-pi-zero-2w", kind="image", memory="1 MiB", answers=1)
