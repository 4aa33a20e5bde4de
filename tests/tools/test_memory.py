"""tools/memory.py: what it draws, what it measures of known allocations, and whether the predictions hold."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from edgefl import models
from edgefl.machine.kernel_scratch import PROBED_BYTES
from edgefl.models import quantised
from edgefl.models.towers.vision import import_torchvision
from edgefl.setup.compose import planner_of, scenario_of
from edgefl.work.optimizer.eight_bit import ReferenceAdamW8bit

TOOL = Path(__file__).resolve().parents[2] / "tools" / "memory.py"
MANY = 500


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("memory_program", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drawing(tool: ModuleType) -> ModuleType:
    return sys.modules["memory.drawing"]


@pytest.fixture(scope="module")
def comparing(tool: ModuleType) -> ModuleType:
    return sys.modules["memory.comparing"]


@pytest.fixture(scope="module")
def drawn(drawing: ModuleType) -> list[dict[str, Any]]:
    return [drawing.draw(5, index) for index in range(MANY)]


def test_weights_that_are_to_be_packed_are_never_there(tool: ModuleType) -> None:
    """Also where a library names the device itself, as timm's layers do."""
    linear, packed = torch.nn.Linear, importlib.import_module("memory.packed")
    with packed.without_weights():
        layers = [linear(3, 2), linear(3, 2, bias=False, device=None), linear(3, 2, device=torch.device("cpu"))]
    assert all(parameter.is_meta for layer in layers for parameter in layer.parameters())
    assert linear(3, 2).weight.device.type == "cpu"


# drawing --------------------------------------------------------------------------------------------------------------


def test_a_configuration_depends_on_seed_and_index_alone(drawing: ModuleType, drawn: list[dict[str, Any]]) -> None:
    assert drawing.draw(5, 17) == drawn[17] == drawing.identified("5-17")
    assert drawn[17]["id"] == "5-17"
    assert len({json.dumps(c["scenario"]) for c in drawn}) == MANY
    assert drawing.draw(6, 17)["scenario"] != drawn[17]["scenario"]
    assert all(json.loads(json.dumps(c)) == c for c in drawn)


def test_every_choice_is_drawn(drawing: ModuleType, drawn: list[dict[str, Any]]) -> None:
    trainings = [c["scenario"]["training"] for c in drawn]
    towers = [t for c in drawn for t in drawing.towers_of(c["scenario"]["model"]).values()]
    assert {t.get("tower", "multiway") for t in towers} == {
        "vit", "timm-vit", "hf-vit", "resnet", "transformer", "gru", "bert", "distilbert", "ast", "multiway",
        "timm", "hf-causal",
    }  # fmt: skip
    decoders = [t["config"] for t in towers if "config" in t]
    assert {c["model_type"] for c in decoders} == set(drawing.DECODERS)
    assert {c["tie_word_embeddings"] for c in decoders} == {True, False}
    chunks = {bool(t["loss_chunk"]) for t in trainings if "loss_chunk" in t}
    assert chunks == {True, False}
    assert {(t["optimizer"], t["implementation"]) for t in trainings} == {
        (o, i) for o in ("sgd", "adam", "adamw", "adamw-8bit") for i in ("for-loop", "foreach", "fused")
    }
    for field, values in {
        "clip": {None, 1.0}, "accumulation": {1, 2, 3, 4},
        "step_in_backward": {True, False},
        "precision": {"float32", "bfloat16"}, "attention": {"device", "math", "flash"}, "epochs": {1, 2},
    }.items():  # fmt: skip
        assert {t[field] for t in trainings} == values
    assert {True, False, "1 block", "2 blocks"} < {t["checkpointing"] for t in trainings}
    assert {t["momentum"] for t in trainings if t["optimizer"] == "sgd"} == {0.0, 0.9}
    assert {t["blocks"] for t in towers if "blocks" in t} >= {1, 2, 3, 4, 5, 6, 12}
    assert {t.get("drop_path", 0.0) > 0 for t in towers} == {True, False}
    assert {c["scenario"]["schedule"]["name"] for c in drawn} == set(drawing.SCHEDULES)
    assert {c["scenario"]["method"]["name"] for c in drawn} == set(drawing.METHODS)
    assert {c["kind"] for c in drawn} == set(drawing.KINDS)
    assert {c["work"] for c in drawn} == {"train", "evaluate"}
    assert {min(t["batch"], 33) for t in trainings} == set(range(1, 33))
    assert {t.get("quantize") for t in towers} == {None, "nf4", "nf4-double", "int8"}
    words = {c["scenario"]["data"]["shapes"]["text"]["vocabulary"] for c in drawn if "text" in c["kind"]}
    assert words >= set(drawing.VOCABULARIES) and min(words) < 1000
    scores = [
        c["scenario"]["data"]["shapes"]["text"]["vocabulary"] * c["scenario"]["training"]["batch"] * t["tokens"] * 4
        for c in drawn for t in [c["scenario"]["model"].get("text", {})] if "config" in t
    ]  # fmt: skip
    assert max(scores) > PROBED_BYTES > min(scores)
    tasks = {task for c in drawn for task in c["scenario"]["data"]["tasks"].values()}
    assert tasks == {"classify", "retrieve", "next-token"}
    methods = [c["scenario"]["method"] for c in drawn]
    for name, field, values in (
        ("fedprox", "norm", {"squared", "tensor"}),
        ("fedcola", "partner", {"trainable", "frozen"}),
        ("creamfl", "old", {"copy", "table"}),
        ("pmcmfl", "mask", {"prototype", "zero", "random"}),
    ):
        assert {m[field] for m in methods if m["name"] == name} == values


def test_nets_of_timm_are_drawn_whole_and_cut(drawing: ModuleType, tool: ModuleType) -> None:
    indices = list(tool.indices(300, nets=True))
    assert len(indices) == 300 and list(tool.indices(7, nets=False)) == list(range(7))
    nets = [drawing.draw(5, index) for index in indices]
    assert nets[3] == drawing.identified(f"5-{indices[3]}")
    variants = [c["scenario"]["model"]["image"]["variant"] for c in nets]
    assert set(variants) == set(drawing.NETS) and len(drawing.NETS) == 26
    stages = {(c["scenario"]["schedule"]["name"], c["stage"] > 1) for c in nets}
    assert stages == {
        ("end-to-end", False),
        *((n, late) for n in ("layerwise", "progressive") for late in (False, True)),
    }
    sgd = {c["scenario"]["schedule"]["name"] for c in nets if c["scenario"]["training"]["optimizer"] == "sgd"}
    assert "layerwise" in sgd
    assert all(
        c["scenario"]["schedule"].get("stages", 1) <= drawing.NETS[v] for c, v in zip(nets, variants, strict=True)
    )


@pytest.mark.slow(smaller="test_a_configuration_depends_on_seed_and_index_alone")
def test_edgefl_takes_what_is_drawn(drawn: list[dict[str, Any]]) -> None:
    for configuration in drawn[:100]:
        scenario_of(configuration["scenario"])


@pytest.mark.parametrize("name", ["17", "1-", "-1-2", "a-1"])
def test_text_that_is_no_id_is_refused(tool: ModuleType, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main([f"--only={name}"])
    assert f"{name!r} is no id of a configuration" in capsys.readouterr().err


@pytest.mark.parametrize("count", [7, pytest.param(60, marks=pytest.mark.slow)])
def test_both_sides_mean_the_same_model(drawing: ModuleType, count: int) -> None:
    """Parameters, and those that train, of the module written by hand are as many as those of edgefl's."""
    from memory.steps import make_model  # type: ignore[import-not-found]

    import_torchvision()
    for index in range(count):
        c = drawing.draw(8, index)
        planner = planner_of(scenario_of(c["scenario"]))
        stage = planner.setup.schedule.offered[c["stage"] - 1]
        work, _ = planner.work(c["kind"], c["round"], stage)
        held = models.on_meta(work.model).named_parameters()
        specs = {n: p.numel() for n, p in held if not quantised.is_part(n)}
        layers = [layer for edit in work.edits if edit.name == "gate" for layer in edit.args["layers"]]
        for layer in layers:
            specs |= {f"{layer}.gate": 1, f"{layer}.partner": specs[f"{layer}.weight"]}
        module = make_model({**c, "work": "train"})
        assert sum(p.numel() for p in module.parameters()) == sum(specs.values()), c["id"]
        trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
        assert trained == sum(specs[name] for name in work.trainable), c["id"]


# measuring ------------------------------------------------------------------------------------------------------------


def test_the_peak_is_the_largest_running_sum_in_order_of_time(tool: ModuleType) -> None:
    from memory.measuring import peak_of  # type: ignore[import-not-found]

    assert peak_of([]) == (0, 0)
    assert peak_of([(1, 100), (2, 50), (3, -100), (4, 80), (5, -80)]) == (150, 2)
    assert peak_of([(3, -100), (1, 100), (4, 80), (2, 50)]) == (150, 2)


def test_the_profiler_sees_known_allocations(tool: ModuleType) -> None:
    from memory.measuring import profiled  # type: ignore[import-not-found]

    def body() -> None:
        first = torch.empty(1000)  # 4,000 bytes
        second = torch.empty(300, dtype=torch.float64)  # 2,400
        del first
        third = torch.zeros(7, 100, dtype=torch.int16)  # 1,400
        del second, third
        torch.empty(900).view(30, 30)  # 3,600

    assert profiled(body) == (6400, ["aten::empty"])


def test_both_sides_make_the_8_bit_states_of_a_large_parameter_at_once(tool: ModuleType, comparing: ModuleType) -> None:
    """Also those of its last numbers, which are updated after the first 2^18."""
    from memory.measuring import profiled
    from memory.steps import EightBit  # type: ignore[import-not-found]

    def peak(made: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]) -> int:
        parameter = torch.nn.Parameter(torch.zeros(2**18 + 2**15))
        optimizer, parameter.grad = made([parameter]), torch.ones_like(parameter)
        return int(profiled(optimizer.step)[0])

    own = peak(lambda parameters: ReferenceAdamW8bit(parameters, 0.1, (0.9, 0.999), 0.0))
    assert abs(peak(lambda parameters: EightBit(parameters, 0.1, 0.0)) - own) <= comparing.FLOOR


ALONE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from memory.drawing import draw, towers_of
from memory.measuring import import_libraries, in_a_fork
library = import_libraries()  # as the tool does first
small = next(
    c for c in (draw(5, i) for i in range(100))
    if all(t.get("tower") in ("vit", "transformer") for t in towers_of(c["scenario"]["model"]).values())
)
print(json.dumps([in_a_fork(small), in_a_fork(small), in_a_fork({**small, "work": None, "scenario": {}})]))
print(sorted(m for m in sys.modules if m.partition(".")[0] == "edgefl"))
"""


@pytest.mark.slow(smaller="test_both_sides_mean_the_same_model")
def test_a_measurement_starts_cold_and_never_imports_edgefl() -> None:
    """Two forks of one process allocate the same, and a failure is an answer."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE, str(TOOL.parent)], capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    answers, modules = ran.stdout.splitlines()
    first, second, failed = json.loads(answers)
    assert first["bytes"] == second["bytes"] > 0
    assert failed["failed"].startswith("KeyError: ")
    assert modules == "[]"


# comparing ------------------------------------------------------------------------------------------------------------


def answered(comparing: ModuleType, configuration: dict[str, Any], predicted: int, allocated: int, **more: str) -> Any:
    return comparing.compared(configuration, {"bytes": predicted, **more}, {"bytes": allocated})


def test_errors_up_to_a_thousandth_or_four_kibibytes_are_inside(
    comparing: ModuleType, drawn: list[dict[str, Any]]
) -> None:
    for predicted, allocated, outside in (
        (1000, 5096, False), (5096, 1000, False), (1000, 5097, True), (99_900_000, 100_000_000, False),
        (100_100_001, 100_000_000, True),
    ):  # fmt: skip
        assert answered(comparing, drawn[0], predicted, allocated).outside is outside
    assert answered(comparing, drawn[0], 5, 5, failed="edgefl said no").outside


def test_every_configuration_counts(comparing: ModuleType, drawn: list[dict[str, Any]]) -> None:
    results = [answered(comparing, c, 10**6 + 100 * i, 10**6) for i, c in enumerate(drawn[:10])]
    results.append(answered(comparing, drawn[10], 0, 10**6, failed="edgefl said no"))
    results.append(answered(comparing, drawn[11], 2 * 10**6, 10**6))
    found = comparing.summary(results)
    assert found == {
        "configurations": 12, "failed": 1, "outside": 2,
        "bytes": {"median": 500.0, "90%": 900.0, "worst": 1e6},
        "relative": {"median": 0.0005, "90%": 0.0009, "worst": 1.0},
    }  # fmt: skip
    text = "\n".join(comparing.report(results))
    assert "12 configurations, 1 failed" in text and "edgefl said no" in text
    assert comparing.to_data(5, results)["configurations"][11]["error"] == 10**6


def test_a_side_that_ends_or_hangs_is_a_failure_and_is_started_again(
    comparing: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "side.py").write_text(
        "import json, sys, time\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if asked == 'end': sys.exit('no more')\n"
        "    if asked == 'hang': time.sleep(60)\n"
        "    print(json.dumps({'bytes': asked}), flush=True)\n"
    )
    monkeypatch.setattr(comparing, "HERE", tmp_path)
    side = comparing.Side("side.py")
    try:
        for asked, limit, answer in (
            (1, 60, {"bytes": 1}), ("end", 60, {"failed": "the process ended: no more"}), (2, 60, {"bytes": 2}),
            ("hang", 0.2, {"failed": "no answer in 0.2 s"}), (3, 60, {"bytes": 3}),
        ):  # fmt: skip
            side.ask(asked)
            assert side.answer(limit) == answer
    finally:
        side.close()


# predictions ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_both_sides_mean_the_same_model")
def test_predictions_meet_the_allocator(tool: ModuleType, comparing: ModuleType, drawing: ModuleType) -> None:
    """Of 30 configurations none is off by more than 0.1 % or 4 KiB, and half of them by no more than 64 B."""
    results = comparing.compare([drawing.draw(15, i) for i in range(30)], 1, lambda _: None)
    found = comparing.summary(results)
    assert found["configurations"] == 30
    assert not [r.line() for r in results if r.outside]
    assert found["bytes"]["median"] <= 64


NET = {"width": 192, "heads": 3, "blocks": 2, "mlp_ratio": 4.0, "drop_path": 0.0}
GPT2 = {
    "model_type": "gpt2", "n_embd": 192, "n_layer": 2, "n_head": 3, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    "attn_pdrop": 0.0, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024, "tie_word_embeddings": True,
}  # fmt: skip
ADAM, ADAMW, MOMENTUM = ({"optimizer": name} for name in ("adam", "adamw", "sgd"))


def gpt2(tokens: int) -> dict[str, Any]:
    return {"tower": "hf-causal", "config": {**GPT2, "n_positions": tokens}, "tokens": tokens}


def timm(variant: str) -> dict[str, Any]:
    return {"tower": "timm", "variant": variant}


LARGE: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "gpt2, 12 x 192": (gpt2(192), 50_257, {"batch": 12, "optimizer": "sgd"}),
    "gpt2, 8 x 512": (gpt2(512), 50_257, {"batch": 8, **ADAMW}),
    "gpt2, 8 x 512, autocast": (gpt2(512), 50_257, {"batch": 8, **ADAMW, "precision": "bfloat16"}),
    "gpt2, 16 x 512": (gpt2(512), 50_257, {"batch": 16, "optimizer": "sgd"}),
    "llama, 4 x 512, bfloat16": (
        {"tower": "hf-causal", "config": LLAMA, "tokens": 512, "dtype": "bfloat16"}, 128_256, {"batch": 4, **ADAM},
    ),
    "llama, 4 x 512": ({"tower": "hf-causal", "config": LLAMA, "tokens": 512}, 128_256, {"batch": 4, **ADAM}),
    "vit, 785 tokens x 48": (
        {**NET, "tower": "vit", "width": 96, "patch": 4}, 112, {"batch": 48, **ADAMW, "attention": "math"},
    ),
    "text, 48 x 512": (
        {**NET, "tower": "transformer", "heads": 6, "tokens": 512}, 2000, {"batch": 48, **ADAMW, "attention": "math"},
    ),
    "resnet, 320 images": (
        {"tower": "resnet", "layers": 18, "stem": "imagenet"}, 128, {"batch": 320, "optimizer": "sgd"},
    ),
    "mobilenet, 256 images": (timm("mobilenetv2_050"), 128, {"batch": 256, "optimizer": "sgd"}),
    "convnext, 320 images": (timm("convnext_atto"), 128, {"batch": 320, **ADAMW, "precision": "bfloat16"}),
    "a table of 700,000 words": (
        {**NET, "tower": "transformer", "width": 240, "tokens": 16}, 700_000,
        {"batch": 8, **ADAM, "implementation": "foreach"},
    ),
}  # fmt: skip
"""A tower, its words or the side of its images, and what differs in training."""


@pytest.mark.slow(smaller="test_scratch_is_continued_to_the_call_that_is_too_large")
@pytest.mark.parametrize("name", LARGE)
def test_predictions_of_calls_too_large_to_be_run_meet_the_allocator(
    name: str, tool: ModuleType, comparing: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 64 B, and without an assumption, but of an optimizer on lists."""
    from memory.predicting import predicted  # type: ignore[import-not-found]

    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path))
    tower, size, training = LARGE[name]
    kind = "text" if "tokens" in tower else "image"
    shapes = {
        "text": {"vocabulary": size, "classes": 10},
        "image": {"channels": 3, "size": size if kind == "image" else 32, "classes": 10},
    }
    training = {
        "implementation": "for-loop", "lr": 1e-4, "weight_decay": 0.0, "epochs": 1, "accumulation": 1,
        "precision": "float32", "attention": "device", "clip": None, "checkpointing": False, "step_in_backward": False,
        **({"momentum": 0.9} if training["optimizer"] == "sgd" else {}), **training,
    }  # fmt: skip
    decodes = tower["tower"] == "hf-causal"
    configuration = {
        "id": name, "kind": kind, "stage": 1, "round": 1, "work": "train",
        "scenario": {
            "edgefl": 1, "name": "memory",
            "data": {
                "source": "declared", "clients": {kind: 1}, "samples": {kind: 2 * training["batch"]},
                "shapes": shapes,
                "tasks": {kind: "next-token"} if decodes else {}, "validation": 0, "test": 4, "public": 2,
            },
            "model": {kind: tower}, "training": training | ({"loss_chunk": None} if decodes else {}),
            "schedule": {"name": "end-to-end", "rounds": 2}, "method": {"name": "fedavg"},
            "evaluation": {"batch": 4}, "executor": {"device": "cpu"},
        },
    }  # fmt: skip
    side = comparing.Side("measuring.py")
    try:
        side.ask(configuration)
        answer, prediction = side.answer(), predicted(configuration)
    finally:
        side.close()
    assert abs(prediction["bytes"] - answer["bytes"]) <= 64
    assert prediction["assumed"] == (name == "a table of 700,000 words")
