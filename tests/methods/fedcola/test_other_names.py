"""FedCola between towers that name or join their layers differently: a ViT's qkv beside a BERT's q, k and v."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from edgefl_toys import CPU, FACTS, Toy, do, inputs_of
from safetensors.torch import load_file
from tensors import assert_equal_tensors
from torch import Tensor, nn

import edgefl
from edgefl import models, registry
from edgefl.cost.predict import predict
from edgefl.errors import EdgeflError, MethodError
from edgefl.methods import Kind, Setting, Update
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.fedcola.gate import Gate, GatedLinear
from edgefl.models import ModelOptions
from edgefl.models.layers import ATTENTION, MLP, BlockLayers, block_layers
from edgefl.registry.registered import PARTS
from edgefl.schedules import Layerwise
from edgefl.work import AllocatorPeak, Meter, Work, execute
from edgefl.work.training_options import TrainingOptions

Tiny = Callable[..., dict[str, Any]]
W = 16
SIZES = {"blocks": 2, "width": W, "heads": 2}
TIMM = {"tower": "timm-vit", "variant": "tiny", **SIZES, "patch": 4}
BERT = {"tower": "bert", **SIZES, "tokens": 6, "dropout": 0.0}
OTHERS = {
    "hf-vit and distilbert": (
        {"tower": "hf-vit", "variant": "tiny", **SIZES, "patch": 4},
        {"tower": "distilbert", **SIZES, "tokens": 6, "dropout": 0.0},
    ),
    "vit and distilbert": ({**SIZES, "patch": 4}, {"tower": "distilbert", **SIZES, "tokens": 6, "dropout": 0.0}),
    "hf-vit and transformer": (
        {"tower": "hf-vit", "variant": "tiny", **SIZES, "patch": 4},
        {**SIZES, "tokens": 6},
    ),
}
PAIRS = {"timm-vit and bert": (TIMM, BERT), **OTHERS}


def setting(
    image: Mapping[str, Any] = TIMM,
    text: Mapping[str, Any] = BERT,
    kinds: tuple[str, ...] = ("image", "text", "image-text"),
) -> Setting:
    model = ModelOptions.model_validate({"image": image, "text": text})
    found = {}
    for name in kinds:
        towers, task = tuple(name.split("-")), "retrieve" if "-" in name else "classify"
        found[name] = Kind(name, towers, task, models.describe(model, towers, task, FACTS))
    return Setting(found, TrainingOptions(batch=8, epochs=1))


def method(name: str = "fedcola", given: Setting | None = None, **options: Any) -> Any:
    kind = registry.get("method", name)
    return kind(kind.Options(**options), given or setting())


def updates(state: Any, samples: Mapping[str, int]) -> list[Update]:
    """One client of each kind, whose parameters have all moved at random."""
    from edgefl.work import Item, Payload

    draw, found = torch.Generator().manual_seed(5), []
    for client, (kind, n) in enumerate(samples.items()):
        values = {
            a: t + torch.randn(t.shape, generator=draw) for a, t in state.tensors.items() if a.startswith(f"{kind}/")
        }
        payload = Payload("model", tuple(Item(a, tuple(t.shape), "float32", a) for a, t in values.items()))
        work = Work(kind, {}, (), (), (payload,), (payload,))
        found.append(Update(client, kind, {kind: n}, work, {"model": values}, state.tensors))
    return found


# towers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ast", "bert", "distilbert", "hf-vit", "timm-vit", "transformer", "vit"])
def test_a_blocks_layers_are_all_named_once(name: str) -> None:
    """A tower's table and the module agree: every parameter of a block is in it, and each part of a block once."""
    modality = registry.get("tower", name).modality
    facts = {**FACTS, "audio": {"bins": 32, "frames": 32, "classes": 5}}
    options = ModelOptions.model_validate({modality: {"tower": name, **SIZES}})
    module = models.on_meta(models.describe(options, (modality,), "classify", facts))
    prefix = f"{modality}.blocks.0."
    own = {n.removeprefix(prefix).rpartition(".")[0] for n, _ in module.named_parameters() if n.startswith(prefix)}
    table = block_layers(name)
    assert own <= table.keys()
    parts = [part for layer in own for part in table[layer]]
    assert len(parts) == len(set(parts)) == 8 and {*ATTENTION, *MLP} < set(parts)
    for layer in own:
        if table[layer][0] in (*ATTENTION, *MLP):
            linear = module.get_submodule(prefix + layer)
            assert isinstance(linear, nn.Linear)
            assert linear.out_features == len(table[layer]) * (4 * W if table[layer] == ("fc1",) else W)


def test_a_table_with_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tower = registry.get("tower", "gru")
    monkeypatch.setattr(tower, "block_layers", {"rnn": ("qurey",)}, raising=False)
    with pytest.raises(
        MethodError, match=r"tower gru: block_layers\['rnn'\] has no part 'qurey'; did you mean 'query'"
    ):
        block_layers("gru")
    monkeypatch.setattr(tower, "block_layers", {"rnn": "query"})
    with pytest.raises(MethodError, match=r"block_layers\['rnn'\] is 'query'; write a tuple of parts"):
        block_layers("gru")


class ForeignBlock(nn.Module):
    """Attention in one layer with key, query and value in this order, and an MLP; post-norm."""

    def __init__(self, width: int):
        super().__init__()
        self.mixing = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        key, query, value = self.mixing(x).chunk(3, -1)
        x = self.after(x + self.out(nn.functional.scaled_dot_product_attention(query, key, value)))
        return x + self.down(self.up(x).relu())


class Foreign(nn.Module):
    blocks = "layers"
    block_layers: ClassVar[BlockLayers] = {
        "mixing": ("key", "query", "value"),
        "out": ("proj",),
        "after": ("post-norm1",),
        "up": ("fc1",),
        "down": ("fc2",),
    }

    def __init__(self, vocabulary: int):
        super().__init__()
        self.width = W
        self.word = nn.Embedding(vocabulary, W)
        self.layers = nn.ModuleList(ForeignBlock(W) for _ in range(2))

    def forward(self, text: Tensor) -> Tensor:
        x = self.word(text)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def foreign() -> Iterator[None]:
    edgefl.register("tower", "foreign")(Foreign)
    yield
    PARTS.clear()
    registry.forget()


def test_a_module_says_the_names_of_its_layers(foreign: None) -> None:
    """Key before query, beside timm's query before key: an A of three pieces of qkv, none a neighbour of the next."""
    fedcola = method(given=setting(TIMM, {"tower": "foreign", "tokens": 6}, ("image", "text")), text_init="random")
    state = fedcola.initial(1)
    work = fedcola.work("text", 1)
    assert work.edits[0].args["pieces"]["text.blocks.0.mixing"] == [
        f"text.blocks.0.mixing.partner.{part}" for part in ("key", "query", "value")
    ]
    module = models.build(work.model)
    Gate.apply(work.edits[0], module, state.items(work))
    layer: Any = module.get_submodule("text.blocks.0.mixing")
    query, key, value = state.tensors["image/image.blocks.0.attn.qkv.weight"].chunk(3)
    assert_equal_tensors(layer.partner.detach(), torch.cat([key, query, value]))
    Gate.fold(work.edits[0], module)
    assert do(work).payloads["model"]


# the server -----------------------------------------------------------------------------------------------------------


NAMES = {  # of one block: the ViT's tensor with the rows of a part, and BERT's
    "attn.qkv.{}[:16]": "attention.self.query.{}",
    "attn.qkv.{}[16:32]": "attention.self.key.{}",
    "attn.qkv.{}[32:]": "attention.self.value.{}",
    "attn.proj.{}[:]": "attention.output.dense.{}",
    "mlp.fc1.{}[:]": "intermediate.dense.{}",
    "mlp.fc2.{}[:]": "output.dense.{}",
}
SCOPE = {"attention": list(NAMES)[:4], "mlp": list(NAMES)[4:], "blocks": list(NAMES), "none": []}
N = {"image": 30, "text": 50, "image-text": 20}


def rows(name: str) -> tuple[str, slice]:
    name, _, rest = name.partition("[")
    start, _, stop = rest.rstrip("]").partition(":")
    return name, slice(int(start or 0), int(stop) if stop else None)


def moved_by_hand(state: Any, sent: list[Update], scope: str) -> dict[str, Tensor]:
    """New values with ``range: all``: the mean over the four stacks in float64, the pair clients counted twice."""
    values = {a: t.double() for u in sent for a, t in u.payloads["model"].items()}
    old, total = {a: t.double() for a, t in state.tensors.items()}, N["image"] + 2 * N["image-text"] + N["text"]
    new = dict(values)  # alone in its kind, a client's value is the mean of what isn't shared
    for block in range(2):
        for leaf in ("weight", "bias"):
            for part in SCOPE[scope]:
                image, at = rows(part.format(leaf))
                text = NAMES[part].format(leaf)
                image, text = f"image.blocks.{block}.{image}", f"text.blocks.{block}.{text}"
                change = sum(
                    N[kind] * (values[f"{kind}/{image}"] - old[f"{kind}/{image}"])[at]
                    for kind in ("image", "image-text")
                ) + sum(N[kind] * (values[f"{kind}/{text}"] - old[f"{kind}/{text}"]) for kind in ("text", "image-text"))
                for kind in ("image", "image-text"):
                    new[f"{kind}/{image}"] = new[f"{kind}/{image}"].clone()
                    new[f"{kind}/{image}"][at] = old[f"{kind}/{image}"][at] + change / total
                for kind in ("text", "image-text"):
                    new[f"{kind}/{text}"] = old[f"{kind}/{text}"] + change / total
    norms = {"image": ("norm1", "norm2"), "text": ("attention.output.LayerNorm", "output.LayerNorm")}
    for modality in norms if scope == "blocks" else ():  # each modality's own, over its two stacks
        n = N[modality] + N["image-text"]
        for block in range(2):
            for name in (f"{modality}.blocks.{block}.{x}.{y}" for x in norms[modality] for y in ("weight", "bias")):
                pair = [f"{modality}/{name}", f"image-text/{name}"]
                change = sum(
                    c * (values[a] - old[a]) for a, c in zip(pair, (N[modality], N["image-text"]), strict=True)
                )
                new |= {a: old[a] + change / n for a in pair}
    return new


@pytest.mark.parametrize("scope", SCOPE)
def test_all_stacks_are_averaged_as_by_hand(scope: str) -> None:
    """Within float32: edgefl adds up in float32, the loop by hand in float64."""
    fedcola = method(collaborate=scope, range="all", compensation=False)
    state = fedcola.initial(1)
    sent = updates(state, N)
    after = fedcola.aggregate(state, sent).tensors
    for address, value in moved_by_hand(state, sent, scope).items():
        torch.testing.assert_close(after[address].double(), value, rtol=1e-6, atol=1e-6)


def test_averaged_rows_are_equal_to_the_bit() -> None:
    """Text blocks start as the image blocks; averaged, rows of qkv and BERT's matrices stay one value, as do kinds."""
    fedcola = method(collaborate="blocks", range="all", compensation=False)
    state = fedcola.initial(1)
    for tensors in (state.tensors, fedcola.aggregate(state, updates(state, N)).tensors):
        for part, text in NAMES.items():
            for leaf in ("weight", "bias"):
                name, at = rows(part.format(leaf))
                one = tensors[f"image/image.blocks.1.{name}"]
                assert_equal_tensors(one[at], tensors[f"text/text.blocks.1.{text.format(leaf)}"])
                assert_equal_tensors(one, tensors[f"image-text/image.blocks.1.{name}"])
    assert one.any()


@pytest.mark.parametrize(
    "section", [{"rule": "median"}, {"rule": "krum"}, {"optimizer": "adam"}, {"optimizer": "momentum", "clip": 1.0}]
)
def test_every_rule_and_server_optimizer_keeps_averaged_rows_equal(section: dict[str, Any]) -> None:
    given = replace(setting(), aggregation=AggregationOptions(**section))
    fedcola = method(given=given, range="all", compensation=False)
    state = fedcola.initial(1)
    start = state.tensors["image/image.blocks.1.attn.qkv.weight"]
    for _ in range(2):
        state = fedcola.aggregate(state, updates(state, N))
    qkv = state.tensors["image/image.blocks.1.attn.qkv.weight"]
    own = "image-text/text.blocks.1.attention.self"
    assert_equal_tensors(qkv, torch.cat([state.tensors[f"{own}.{x}.weight"] for x in ("query", "key", "value")]))
    assert (qkv != start).all()


@pytest.mark.parametrize("share", ["attention", "ffn", "all", "vision-attention", "language-attention"])
@pytest.mark.parametrize("compensation", [True, False])
@pytest.mark.parametrize("balance", ["none", "scale", "mean"])
def test_the_modality_agnostic_transformer_is_averaged_as_by_hand(share: str, compensation: bool, balance: str) -> None:
    given = setting(kinds=("image", "text"))
    mat = method("fedcola-mat", given, share=share, compensation=compensation, balance=balance)
    state = mat.initial(1)
    n = {"image": 30.0, "text": 50.0}
    sent = updates(state, {"image": 30, "text": 50})
    after = mat.aggregate(state, sent).tensors
    change = {a: (t - state.tensors[a]).double() for u in sent for a, t in u.payloads["model"].items()}
    scope = {"ffn": SCOPE["mlp"], "all": SCOPE["blocks"]}.get(share, SCOPE["attention"])
    sources = {"vision-attention": ["image"], "language-attention": ["text"]}.get(share, ["image", "text"])
    checked = set()
    for part in scope:
        (image, at), text = rows(part.format("weight")), NAMES[part].format("weight")
        image, text = f"image/image.blocks.1.{image}", f"text/text.blocks.1.{text}"
        checked |= {image, text}
        d = {"image": change[image][at], "text": change[text]}
        weights = n if balance == "none" else {"image": 50.0, "text": 50.0}
        total = sum(weights[m] for m in (n if compensation else sources))
        mean = sum(weights[m] * d[m] for m in sources) / total
        torch.testing.assert_close(after[image][at].double(), state.tensors[image][at] + mean, rtol=1e-6, atol=1e-6)
        assert_equal_tensors(after[image][at], after[text])
    private = n if balance != "scale" else {"image": 50.0, "text": 50.0}
    for address in (
        "image/image.blocks.1.norm1.weight", "text/text.blocks.1.output.LayerNorm.weight", "text/text.head.bias"
    ):  # fmt: skip
        share_of = private[address.split("/")[0]] / sum(private.values()) if compensation else 1.0
        expected = state.tensors[address] + share_of * change[address]
        torch.testing.assert_close(after[address].double(), expected, rtol=1e-6, atol=1e-6)


# clients --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize("scope", ["attention", "mlp", "blocks"])
def test_what_travels_of_a_partner_is_what_its_model_has(pair: str, kind: str, scope: str) -> None:
    given = setting(*PAIRS[pair], kinds=("image", "text"))
    other = "text" if kind == "image" else "image"
    linear = {"attention": 4 * (W * W + W), "mlp": 8 * W * W + 5 * W, "blocks": 12 * W * W + 9 * W}[scope]
    whole = linear + (4 * W if scope == "blocks" else 0)
    for payload, floats in (("all", whole), ("weights", linear - {"attention": 4, "mlp": 5, "blocks": 9}[scope] * W)):
        fedcola = method(given=given, complementary=scope, partner_payload=payload)
        work = fedcola.work(kind, 1)
        assert work.down[1].tensor_bytes == 4 * 2 * floats
        assert {item.source.split(".")[0] for item in work.down[1].items} == {f"{other}/{other}"}
        names = [item.name for item in work.down[1].items]
        assert len(names) == len(set(names))
        assert Work.decode(work.encode()) == work
    if scope == "blocks":
        block = sum(
            spec.bytes for n, spec in given.kinds[other].parameters().items() if n.startswith(f"{other}.blocks.")
        )
        assert block == 4 * 2 * whole


def test_the_partner_is_the_other_towers_rows() -> None:
    """The gate of a ViT's qkv has BERT's three matrices one below the other; BERT's gates have rows of qkv."""
    fedcola = method(text_init="random")
    state = fedcola.initial(1)
    image = fedcola.work("image", 1)
    module = models.build(image.model)
    Gate.apply(image.edits[0], module, state.items(image))
    qkv: Any = module.get_submodule("image.blocks.1.attn.qkv")
    own = "text/text.blocks.1.attention.self"
    stacked = torch.cat([state.tensors[f"{own}.{part}.weight"] for part in ("query", "key", "value")])
    assert isinstance(qkv, GatedLinear) and qkv.gate.shape == (1,)
    assert_equal_tensors(qkv.partner.detach(), stacked)
    Gate.fold(image.edits[0], module)
    text = fedcola.work("text", 1)
    module = models.build(text.model)
    Gate.apply(text.edits[0], module, state.items(text))
    for start, part in ((0, "query"), (16, "key"), (32, "value")):
        layer: Any = module.get_submodule(f"text.blocks.1.attention.self.{part}")
        whole = state.tensors["image/image.blocks.1.attn.qkv.weight"]
        assert isinstance(layer, GatedLinear)
        assert_equal_tensors(layer.partner.detach(), whole[start : start + 16])
    assert len(text.edits[0].args["layers"]) == 12 and len(image.edits[0].args["layers"]) == 8
    Gate.fold(text.edits[0], module)


def stages() -> Any:
    return Layerwise(Layerwise.Options(stages=2, rounds=2), {"image": 2, "text": 2}).stages


def test_a_stage_has_the_gates_and_partners_of_its_blocks() -> None:
    fedcola = method()
    for kind, layers in (("image", 4), ("text", 6)):
        for index, stage in enumerate(stages()):
            work = stage.restrict_work(fedcola.work(kind, 1))
            (edit,) = work.edits
            assert len(edit.args["layers"]) == layers
            assert all(f".blocks.{index}." in name for name in edit.args["layers"])
            assert all(f".blocks.{index}." in i.name and f".blocks.{index}." in i.source for i in work.down[1].items)
            assert work.down[1].tensor_bytes == 4 * (12 * W * W + 13 * W)
            assert set(edit.args.get("pieces", {})) == (
                {f"image.blocks.{index}.attn.qkv"} if kind == "image" else set()
            )
            assert stage.restrict_work(work) == work


def test_a_piece_that_did_not_come_is_named() -> None:
    work = method().work("image", 1)
    inputs = inputs_of(work)
    del inputs["image.blocks.1.attn.qkv.partner.key"]
    module = models.build(work.model)
    with pytest.raises(MethodError, match=r"the gate of image.blocks.1.attn.qkv needs .*attn.qkv.partner.key"):
        Gate.apply(work.edits[0], module, inputs)
    assert not any(isinstance(layer, GatedLinear) for layer in module.modules())


WORKS = {
    f"{kind}, {scope}, {partner}{where}": (kind, scope, partner, where)
    for kind in ("image", "text")
    for scope in ("attention", "mlp", "blocks")
    for partner in ("trainable", "frozen")
    for where in ("", ", stage 2")
}


FEWER = tuple(
    f"{kind}, {scope}, {partner}{where}"
    for kind, scope, partner, where in (
        ("image", "attention", "trainable", ""), ("image", "mlp", "frozen", ", stage 2"),
        ("image", "blocks", "frozen", ""), ("text", "attention", "frozen", ", stage 2"),
        ("text", "mlp", "trainable", ""), ("text", "blocks", "trainable", ", stage 2"),
    )
)  # fmt: skip
"""Works with every pair of a kind, a scope, a partner and a stage."""


@pytest.mark.parametrize(
    "case", [case if case in FEWER else pytest.param(case, marks=pytest.mark.slow) for case in WORKS]
)
def test_predicted_memory_and_flops_are_the_measured_ones(case: str) -> None:
    kind, scope, partner, where = WORKS[case]
    work = method(complementary=scope, partner=partner).work(kind, 1)
    work = replace(stages()[1].restrict_work(work) if where else work, attention="math")
    trace, measured = predict(work, Toy()), do(work, meter=Meter()).trace
    assert measured is not None and trace.peak_memory_bytes == measured.peak_memory_bytes > 0
    assert trace.memory_bytes == measured.memory_bytes
    flops = [{k: (s.forward_flops, s.backward_flops) for k, s in t.steps.items()} for t in (trace, measured)]
    assert flops[0] == flops[1]
    module, inputs = models.build(work.model), inputs_of(work)
    with AllocatorPeak(CPU, [*module.parameters(), *module.buffers()]) as seen:
        execute(work, inputs, Toy(), module=module, device=CPU, seed=1)
    assert trace.live_memory_bytes == pytest.approx(seen.bytes, abs=16)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kind", ["image", "text"])
def test_the_upload_is_the_plain_model_and_computes_what_was_trained(pair: str, kind: str) -> None:
    work = method(given=setting(*PAIRS[pair], kinds=("image", "text"))).work(kind, 1)
    module = models.build(work.model)
    result = do(work, module=module)
    state = module.state_dict()
    assert list(result.payloads["model"]) == list(models.build(work.model).state_dict())
    assert_equal_tensors(result.payloads["model"], state)
    start = inputs_of(work)
    assert all(not torch.equal(start[name], value) for name, value in state.items() if ".blocks." in name)


# runs -----------------------------------------------------------------------------------------------------------------

DATA = {
    "source": "glyphs", "clients": {"image": 2, "text": 2, "image-text": 1}, "samples": 24, "validation": 20, "test": 20
}  # fmt: skip
MODEL = {
    "image": {"tower": "timm-vit", "variant": "tiny", **SIZES, "patch": 8},
    "text": {"tower": "bert", **SIZES, "tokens": 12},
}
LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 2}
EVERY: dict[str, dict[str, Any]] = {
    "blocks": {},
    "attention, frozen": {"complementary": "attention", "partner": "frozen", "collaborate": "mlp"},
    "mlp, weights": {"complementary": "mlp", "partner_payload": "weights", "collaborate": "blocks"},
    "none": {"complementary": "none", "collaborate": "none", "text_init": "random"},
    "all": {"complementary": "none", "collaborate": "blocks", "range": "all", "compensation": False},
    "all, attention": {"collaborate": "attention", "range": "all", "compensation": False},
    "all, mlp, frozen": {"partner": "frozen", "collaborate": "mlp", "range": "all", "compensation": False},
}
MAT = [{"name": "fedcola-mat", "share": share} for share in ("attention", "ffn", "all", "vision-attention")]
RUNS = {**{name: {"name": "fedcola", **options} for name, options in EVERY.items()},
        **{f"mat, {options['share']}": options for options in MAT}}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "layerwise"),
    [
        pytest.param(
            name, layerwise, marks=[] if name in ("blocks", "all, attention") and layerwise else pytest.mark.slow
        )
        for name in RUNS
        for layerwise in (False, True)
    ],
)
@pytest.mark.usefixtures("one_worker")
def test_runs_send_what_is_profiled_and_are_the_same_in_workers(
    tiny: Tiny, tmp_path: Path, name: str, layerwise: bool
) -> None:
    schedule = LAYERWISE if layerwise else {"name": "end-to-end", "rounds": 2}
    data = {**DATA, "clients": {"image": 2, "text": 2}} if name.startswith("mat") else DATA
    scenario = tiny(data=data, model=MODEL, method=RUNS[name], schedule=schedule)
    run = edgefl.run(scenario, out=tmp_path / "one")
    workers = {"name": "processes", "workers": 2, "device": "cpu"}
    again = edgefl.run({**scenario, "executor": workers}, out=tmp_path / "two")
    for table in ("rounds", "clients", "eligibility"):
        assert run.records(table) == again.records(table)  # type: ignore[arg-type]
    weights = load_file(run.path / "weights.safetensors")
    assert_equal_tensors(weights, load_file(again.path / "weights.safetensors"))
    profiled = {(r["kind"], r["stage"]): r for r in edgefl.profile(scenario)["rows"]}
    for row in run.records("clients"):
        expected = profiled[row["kind"], row["stage"]]
        assert row["upload_bytes"] == expected["upload_bytes"]
        if not layerwise or row["stage"] == 1:
            assert row["download_bytes"] == expected["download_bytes"]
    names = {name.split("/")[1] for name in weights if name.startswith("text/")}
    assert "text.blocks.1.attention.self.query.weight" in names and not any(
        "partner" in n or "gate" in n for n in names
    )


@pytest.mark.slow(smaller="test_predicted_memory_and_flops_are_the_measured_ones")
def test_the_shipped_vit_and_bert_can_be_profiled() -> None:
    rows = edgefl.profile("finetune/vit-s-bert", ["method=fedcola", "compare={}"])["rows"]
    assert {row["kind"] for row in rows} == {"image", "text", "image-text"}
    plain = {row["kind"]: row for row in edgefl.profile("finetune/vit-s-bert", ["compare={}"])["rows"]}
    for row in rows:  # six blocks of width 384 of the other modality
        partner = 0 if row["kind"] == "image-text" else 4 * 6 * (12 * 384**2 + 13 * 384)
        assert row["download_bytes"] - plain[row["kind"]]["download_bytes"] == partner
        assert row["upload_bytes"] == plain[row["kind"]]["upload_bytes"]


# refusals -------------------------------------------------------------------------------------------------------------

NARROW = {**MODEL, "text": {**MODEL["text"], "width": 32}}
ALL = {"name": "fedcola", "complementary": "none", "range": "all", "compensation": False}


@pytest.mark.parametrize(
    ("model", "method", "says"),
    [
        (
            NARROW, {"name": "fedcola"},
            r"complementary training needs blocks of the same shape: query of image.blocks.0.attn.qkv.weight is "
            r"\(16, 16\), query of text.blocks.0.attention.self.query.weight is \(32, 32\); give both towers the same",
        ),
        (
            NARROW, ALL,
            r"range: all averages the same layers of all modalities: query of image.blocks.0.attn.qkv.weight is .*; "
            "give the towers the same width, or set range: in-modality",
        ),
        (
            NARROW, {"name": "fedcola-mat"},
            r"but blocks.0.attn.proj.bias is \(16,\) in image and \(32,\) in text; give the towers blocks of the same",
        ),
        (
            {**MODEL, "text": {"tower": "gru", "hidden": 8}}, {"name": "fedcola", "complementary": "attention"},
            "blocks of the tower gru of text clients have no query, key, value, proj; towers that work: vit, timm-vit",
        ),
        (
            {**MODEL, "image": {"tower": "resnet", "layers": 18}}, {"name": "fedcola", "complementary": "mlp"},
            "blocks of the tower resnet of image clients have no fc1, fc2; .*; or set complementary: none",
        ),
        (
            {**MODEL, "text": {"tower": "gru", "hidden": 8}}, ALL,
            "range: all averages attention of all modalities, and the towers of image and text have nothing of it",
        ),
        (
            {**MODEL, "text": {"tower": "gru", "hidden": 8}}, {"name": "fedcola-mat"},
            r"but blocks.0.attn.proj.bias is \(16,\) in image and absent in text",
        ),
    ],
)  # fmt: skip
def test_towers_that_do_not_correspond_are_refused(
    tiny: Tiny, model: dict[str, Any], method: dict[str, Any], says: str
) -> None:
    data = {**DATA, "clients": {"image": 1, "text": 1}}
    with pytest.raises(EdgeflError, match=says) as caught:
        edgefl.validate(tiny(data=data, model=model, method=method))
    assert "\n" not in str(caught.value)


def test_an_adapters_factors_are_not_averaged_over_towers_of_other_names(tiny: Tiny) -> None:
    """LoRA on qkv has other factors than LoRA on q, k and v: nothing that trains is in common."""
    adapter = {"name": "lora", "rank": 2}
    data = {**DATA, "clients": {"image": 1, "text": 1}}
    with pytest.raises(EdgeflError, match="nothing of it in common that trains"):
        edgefl.validate(tiny(data=data, model=MODEL, method=ALL, adapter=adapter))
    edgefl.validate(tiny(data=data, model=MODEL, method={**ALL, "range": "in-modality"}, adapter=adapter))
