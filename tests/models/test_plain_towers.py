"""Ordinary modules as towers: fields, schedules, workers, weights, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import edgefl
from edgefl import models, registry, seeds
from edgefl.cost.predict import predict
from edgefl.errors import EdgeflError, PluginError
from edgefl.modalities import MODALITIES
from edgefl.models.plain import PlainTower, arrange_parts
from edgefl.models.towers.vision import import_torchvision
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work.steps import ClassifyStep, Context

Tiny = Callable[..., dict[str, Any]]
DATA = {"source": "glyphs", "clients": {"image": 3}, "samples": 40, "size": 16, "validation": 40, "test": 40}
PLUG_IN = """
import random

import edgefl
import numpy as np
import torch
from torch import nn


@edgefl.register("tower", "mynet")
class MyNet(nn.Module):
    blocks = "layers"

    def __init__(self, channels: int, size: int, hidden: int = 8, deep: int = 3, noise: float = 0):
        super().__init__()
        self.noise = noise
        self.place = nn.Parameter(torch.zeros(hidden, size // 4, size // 4))
        self.embedding = nn.Conv2d(channels, hidden, 4, stride=4)
        self.layers = nn.ModuleList(nn.Conv2d(hidden, hidden, 3, padding=1) for _ in range(deep))
        self.norm = nn.BatchNorm2d(hidden)
        self.final = nn.Linear(hidden, 12)
        self.width = 12
        with torch.no_grad():
            self.place += noise * random.random()

    def forward(self, image):
        x = self.embedding(image) + self.place
        x = x + self.noise * np.random.randn()
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.final(self.norm(x).mean((2, 3)))
"""


@pytest.fixture
def mynet(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "mine.py"
    file.write_text(PLUG_IN)
    registry.load_plug_in(file)
    yield file
    registry.unload_plug_ins()


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Forget the parts that a test registered."""
    yield
    PARTS.clear()
    registry.forget()


def with_mynet(tiny: Tiny, **more: Any) -> dict[str, Any]:
    return tiny(**{"data": DATA, "model": {"image": {"tower": "mynet", "hidden": 10}}, **more})


def test_a_module_with_blocks_is_cut_and_computes_as_before(mynet: Path) -> None:
    made: Any = registry.get("tower", "mynet").made
    torch.manual_seed(1)
    own = made(3, 16).eval()
    torch.manual_seed(1)
    tower: Any = arrange_parts(made(3, 16), "layers", 3).eval()
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(own(x), tower(x))
    parts = {name.split(".")[0] for name, _ in tower.named_parameters()}
    assert parts == {"embedding", "blocks", "norm"}
    stored = own.state_dict()
    for name, value in tower.named_parameters():
        assert torch.equal(stored[tower.own_name(name)], value)
    torch.manual_seed(1)
    short: Any = arrange_parts(made(3, 16), "layers", 1)
    assert len(short.layers) == 1 and set(short.state_dict()) < set(tower.state_dict())


@pytest.mark.parametrize("schedule", ["end-to-end", "layerwise", "progressive", "elastic"])
def test_every_schedule_cuts_it_and_costs_are_those_measured(
    tiny: Tiny, mynet: Path, tmp_path: Path, schedule: str
) -> None:
    run = edgefl.run(with_mynet(tiny, schedule={"name": schedule, "rounds": 4}), out=tmp_path / "run")
    rows = run.records("clients")
    errors = [row["memory_error"] for row in rows if row.get("memory_error") is not None]
    assert errors and max(map(abs, errors)) < 1e-3
    assert run.model("image").state_dict().keys() == {
        name.partition("/")[2] for name in run.weights() if name.startswith("image/")
    }


@pytest.mark.slow(smaller="test_inline_and_processes_give_the_same_reports")
def test_workers_give_the_same_bytes_and_weights_load_by_own_names(tiny: Tiny, mynet: Path, tmp_path: Path) -> None:
    model = {"image": {"tower": "mynet", "hidden": 10, "noise": 0.1}}
    runs = [
        edgefl.run(with_mynet(tiny, model=model, executor=executor), out=tmp_path / executor["name"])
        for executor in ({"name": "inline", "device": "cpu"}, {"name": "processes", "workers": 2, "device": "cpu"})
    ]
    first, second = (run.weights() for run in runs)
    assert all(torch.equal(value, second[name]) for name, value in first.items())

    own = registry.get("tower", "mynet").made(1, 16, hidden=10)
    save_file(own.state_dict(), tmp_path / "own.safetensors")
    model = {"image": {"tower": "mynet", "hidden": 10, "weights": str(tmp_path / "own.safetensors")}}
    from edgefl.scenario import load
    from edgefl.setup.compose import compose

    state = compose(load(with_mynet(tiny, model=model))).method.initial(3).tensors
    assert torch.equal(state["image/image.blocks.1.weight"], own.layers[1].weight)
    assert torch.equal(state["image/image.embedding.place"], own.place)
    save_file({"place": own.place.detach()}, tmp_path / "own.safetensors")
    with pytest.raises(EdgeflError, match="embedding.weight isn't there"):
        edgefl.validate(with_mynet(tiny, model=model))


def test_an_adapter_begins_on_weights_of_the_module_alone(tiny: Tiny, tmp_path: Path) -> None:
    @edgefl.register("tower", "linears")
    class Linears(nn.Module):
        blocks = "layers"
        width = 8

        def __init__(self, channels: int, size: int):
            super().__init__()
            self.stem = nn.Linear(channels * size * size, 8)
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, image: Tensor) -> Tensor:
            x: Tensor = self.stem(image.flatten(1))
            for layer in self.layers:
                x = x + layer(x).relu()
            return x

    from edgefl.scenario import load
    from edgefl.setup.compose import compose

    own = Linears(1, 16)
    save_file(own.state_dict(), tmp_path / "own.safetensors")
    model = {"image": {"tower": "linears", "weights": str(tmp_path / "own.safetensors")}}
    scenario = tiny(data=DATA, model=model, adapter={"name": "lora", "rank": 2})
    state = compose(load(scenario)).method.initial(3).tensors
    assert torch.equal(state["image/image.blocks.1.weight"], own.layers[1].weight)
    assert not state["image/image.blocks.1.lora_b"].any() and state["image/image.blocks.1.lora_a"].any()

    @edgefl.register("tower", "whole")
    class Whole(Linears):
        blocks = None  # type: ignore[assignment]

    message = "so none gets factors; name others in parts: image.layers.0, image.layers.1, image.stem"
    with pytest.raises(EdgeflError, match=message):
        edgefl.validate(tiny(data=DATA, model={"image": {"tower": "whole"}}, adapter="lora"))


def test_what_it_draws_from_global_generators_is_the_same_again(tiny: Tiny, mynet: Path, tmp_path: Path) -> None:
    """From numpy's and random's, while it is built, trained and scored; also where a run goes on.  numpy's and torch's
    stay as they were: the checks of annotations in tests draw from random's."""
    model, schedule = {"image": {"tower": "mynet", "noise": 0.1}}, {"name": "end-to-end", "rounds": 2}
    scenario = with_mynet(tiny, model=model, schedule=schedule)

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == 2:
            raise KeyboardInterrupt

    def states() -> list[list[int]]:
        return [np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002

    seeds.seed_globals(1)
    edgefl.run(scenario, out=tmp_path / "whole")
    seeds.seed_globals(2)
    before = states()
    with pytest.raises(KeyboardInterrupt):
        edgefl.run(scenario, out=tmp_path / "again", on_progress=stop)
    edgefl.run(resume=tmp_path / "again")
    assert states() == before
    for file in ("rounds.jsonl", "clients.jsonl", "weights.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def refused(tiny: Tiny, made: type[nn.Module], **options: Any) -> str:
    """The message about a class of modules, registered for this test."""
    name = made.__name__.lower()
    with pytest.raises((EdgeflError, PluginError)) as refusal:
        edgefl.register("tower", name)(made)
        edgefl.profile(tiny(data=DATA, model={"image": {"tower": name, **options}}))
    message = str(refusal.value)
    assert "\n" not in message
    return message


def test_what_can_not_be_a_tower_is_told_in_a_line(tiny: Tiny) -> None:
    class NoWidth(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.layer = nn.Conv2d(channels, 4, 4)

        def forward(self, image: Tensor) -> Tensor:
            return self.layer(image).mean((2, 3))  # type: ignore[no-any-return]

    class Wrong(NoWidth):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.width = 5

    class Lazy(Wrong):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.width, self.layer = 4, nn.LazyConv2d(4, 4)  # type: ignore[assignment]

    class Later(Wrong):
        def forward(self, image: Tensor) -> Tensor:
            self.more = nn.Linear(4, 5)
            return self.more(super().forward(image))  # type: ignore[no-any-return]

    class Bare(Wrong):
        def __init__(self, channels) -> None:  # type: ignore[no-untyped-def]
            super().__init__(channels)

    class Blind(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    class Elsewhere(Wrong):
        blocks = "layers"

    class Headed(Wrong):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.width, self.head = 4, nn.Linear(4, 4)

    for made, says in (
        (Headed, "its part 'head' has the name of what a task adds to a tower: rename it"),
        (NoWidth, "set self.width in its constructor"),
        (
            Wrong,
            "forward gives [2, 4] of image [2, 1, 16, 16], and [2, 4] is read of it; expected [2, 5]",
        ),
        (Lazy, "layer.weight is made in forward; make all parameters in __init__"),
        (Later, "more.bias is made in forward; make all parameters in __init__"),
        (Bare, "has an argument without annotation: write channels: int"),
        (Blind, "name the argument of forward image, text, audio, motion, or set modality; found 'x'"),
        (Elsewhere, "Elsewhere.blocks names 'layers', which is no nn.Sequential or nn.ModuleList of the module"),
    ):
        assert says in refused(tiny, made)


class Odd(nn.Module):
    """A linear tower, of which the classes below are odd in one thing."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.width = 8
        self.stem = nn.Linear(channels * size * size, 8)

    def forward(self, image: Tensor) -> Tensor:
        return self.more(self.stem(image.flatten(1)))

    def more(self, x: Tensor) -> Tensor:
        return x


def test_tensors_that_can_not_travel_and_operators_that_can_not_be_counted_are_refused(tiny: Tiny) -> None:
    class Complex(Odd):
        def __init__(self, channels: int, size: int) -> None:
            super().__init__(channels, size)
            self.turn = nn.Parameter(torch.ones(8, dtype=torch.complex64))

    class Rotary(Odd):
        def __init__(self, channels: int, size: int) -> None:
            super().__init__(channels, size)
            self.register_buffer("turn", torch.polar(torch.ones(8), torch.ones(8)), persistent=False)

    class Neighbours(Odd):
        def __init__(self, channels: int, size: int) -> None:
            super().__init__(channels, size)
            own = torch.arange(8)
            self.register_buffer("near", torch.sparse_coo_tensor(torch.stack([own, own]), torch.ones(8), (8, 8)))

    class Eighth(Odd):
        def __init__(self, channels: int, size: int) -> None:
            super().__init__(channels, size)
            self.register_buffer("small", torch.zeros(8).to(torch.float8_e4m3fn))

    class Running(Odd):
        def __init__(self, channels: int, size: int) -> None:
            super().__init__(channels, size)
            self.norm = nn.LazyBatchNorm1d(affine=False)

    class Scripted(Odd):
        def __init__(self, channels: int, size: int) -> None:
            super().__init__(channels, size)
            self.part = torch.jit.script(nn.Linear(8, 8))

    class Sparse(nn.Module):
        def __init__(self, vocabulary: int) -> None:
            super().__init__()
            self.width = 8
            self.words = nn.Embedding(vocabulary, 8, sparse=True)

        def forward(self, text: Tensor) -> Tensor:
            return self.words(text).mean(1)  # type: ignore[no-any-return]

    as_real = "hold it as torch.view_as_real of it, and take torch.view_as_complex in forward"
    for made, message in (
        (Complex, f"tower complex: turn is complex64; {as_real}"),
        (Rotary, f"tower rotary: turn is complex64; {as_real}"),
        (Neighbours, "tower neighbours: near is sparse; hold it as a dense tensor"),
        (Eighth, "tower eighth: small is float8_e4m3fn, in which nothing is sent; allowed: float64, float32,"),
        (Running, "tower running: norm.running_mean is made in forward"),
    ):
        assert message in refused(tiny, made), message
    with pytest.warns(DeprecationWarning, match="script"):
        assert "tower scripted: its part 'part' is compiled by torch.jit" in refused(tiny, Scripted)
    edgefl.register("tower", "sparse")(Sparse)
    data = {**DATA, "clients": {"text": 3}}
    with pytest.raises(EdgeflError, match=r"aten\..* gives a sparse tensor: .* by sparse=False"):
        edgefl.profile(tiny(data=data, model={"text": {"tower": "sparse"}}))


def test_a_complex_weight_that_is_held_as_real_numbers_counts_and_trains(tiny: Tiny, tmp_path: Path) -> None:
    @edgefl.register("tower", "turned")
    class Turned(Odd):
        def __init__(self, channels: int, size: int) -> None:
            super().__init__(channels, size)
            self.turn = nn.Parameter(torch.randn(8, 8, 2))

        def more(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex64) @ torch.view_as_complex(self.turn)).abs()

    run = edgefl.run(tiny(data=DATA, model={"image": {"tower": "turned"}}), out=tmp_path / "run")
    (row,) = {(row["kind"], row["download_bytes"]) for row in run.records("clients") if row["round"] == 1}
    classes = run.weights()["image/image.head.bias"].numel()
    assert row[1] == 4 * (256 * 8 + 8 + 8 * 8 * 2 + 8 * classes + classes)
    assert {row["memory_error"] for row in run.records("clients")} <= {None, 0.0}


@pytest.mark.slow(smaller="test_a_module_with_blocks_is_cut_and_computes_as_before")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_compiled_module_is_trained_as_it_is_written(tiny: Tiny, tmp_path: Path) -> None:
    class Written(Odd):
        blocks = "layers"

        def __init__(self, channels: int, size: int) -> None:
            super().__init__(channels, size)
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def more(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = self.activation(layer(x))
            return x

        activation = staticmethod(torch.relu)

    class Compiled(Written):
        def __init__(self, channels: int, size: int) -> None:
            super().__init__(channels, size)
            self.layers = nn.ModuleList(map(torch.compile, self.layers))  # type: ignore[arg-type]
            self.stem.compile()

        activation = staticmethod(torch.compile(torch.relu))

    weights = []
    for made in (Written, Compiled):
        edgefl.register("tower", "written")(made)
        given = tiny(data=DATA, model={"image": {"tower": "written"}}, schedule={"name": "layerwise", "rounds": 2})
        weights.append(edgefl.run(given, out=tmp_path / made.__name__).weights())
        PARTS.clear()
        registry.forget()
    assert weights[0].keys() == weights[1].keys() and "image/image.blocks.1.weight" in weights[0]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_module_without_blocks_trains_whole_or_not_at_all(tiny: Tiny, tmp_path: Path) -> None:
    class Whole(nn.Module):
        def __init__(self, channels: int, size: int, hidden: int = 6) -> None:
            super().__init__()
            self.layer, self.width = nn.Linear(channels * size * size, hidden), hidden

        def forward(self, image: Tensor) -> Tensor:
            features: Tensor = self.layer(image.flatten(1))
            return features

    edgefl.register("tower", "whole")(Whole)
    scenario = tiny(data=DATA, model={"image": {"tower": "whole"}})
    assert edgefl.run(scenario, out=tmp_path / "run").is_finished
    with pytest.raises(EdgeflError, match="1 block"):
        edgefl.profile(scenario | {"schedule": {"name": "layerwise", "stages": 2, "rounds": 2}})


@pytest.mark.slow(smaller="test_any_plain_vision_transformer_of_timm_is_a_tower")
@pytest.mark.parametrize("variant", ["mobilenetv3_small_050", "convnext_atto", "vit_tiny_patch16_224"])
def test_timm_models_are_towers(tiny: Tiny, tmp_path: Path, variant: str) -> None:
    data = DATA | {"size": 32, "samples": 16, "clients": {"image": 1}}
    tower = {"image": {"tower": "timm", "variant": variant}}
    scenario = tiny(data=data, model=tower, schedule={"name": "end-to-end", "rounds": 1})
    run = edgefl.run(scenario, out=tmp_path / "run")
    (error,) = {row["memory_error"] for row in run.records("clients")}
    assert abs(error) < 1e-3
    import timm

    theirs = timm.create_model(variant, num_classes=0, in_chans=1, **({"img_size": 32} if "vit" in variant else {}))
    model: Any = run.model("image")
    own: Any = model.tower("image")
    heads = ("head.", "rep.")
    theirs.load_state_dict({own.own_name(n): t for n, t in own.state_dict().items() if not n.startswith(heads)})
    x = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        a, b = model.feature("image", x), theirs.eval()(x)
        assert torch.allclose(a, b, rtol=0, atol=1e-6)  # addresses in memory choose kernels


@pytest.mark.parametrize("variant", ["convnext_atto", "swin_tiny_patch4_window7_224", "edgenext_xx_small"])
def test_stages_of_timm_give_its_feature_maps(variant: str) -> None:
    import_torchvision()  # timm imports it too
    import timm

    theirs = timm.create_model(variant, features_only=True, in_chans=1).eval()
    given = {"tower": "timm", "variant": variant, "channels": 1, "size": 224}
    x = torch.randn(2, 1, 224, 224)
    with torch.no_grad():
        for depth, maps in enumerate(theirs(x)[:3], start=1):
            tower = registry.get("tower", "timm").build({**given, "depth": depth}, True).eval()
            own = {n: tower.own_name(n) for n in tower.state_dict()}
            stored = {n.replace("stages_", "stages.").replace("layers_", "layers.").replace("stem_", "stem."): t
                      for n, t in theirs.state_dict().items()}  # fmt: skip
            tower.load_state_dict({n: stored[name] for n, name in own.items()})
            mean = maps.mean((1, 2) if "swin" in variant else (2, 3))
            found = tower(x)
            assert found.shape == (2, tower.width)
            assert torch.allclose(found[:, : mean.shape[1]], mean, atol=1e-6)
            assert not found[:, mean.shape[1] :].any()


@pytest.mark.parametrize("variant", ["mobilenetv3_small_050", "convnext_atto", "ghostnet_100"])
@pytest.mark.parametrize("schedule", ["layerwise", "progressive"])
def test_timms_stages_train_one_by_one(tiny: Tiny, variant: str, schedule: str) -> None:
    data = DATA | {"size": 32, "samples": 16, "clients": {"image": 1}}
    tower = {"image": {"tower": "timm", "variant": variant}}
    run = edgefl.run(tiny(data=data, model=tower, schedule={"name": schedule, "stages": 3, "rounds": 3}))
    assert {row["stage"] for row in run.records("clients")} == {1, 2, 3}
    assert max(abs(row["memory_error"]) for row in run.records("clients")) < 1e-3
    assert all(math.isfinite(row["loss"]) for row in run.records("clients"))


def test_an_unknown_variant_is_refused(tiny: Tiny) -> None:
    near = ("mobilenetv3_smal_100", "did you mean 'mobilenetv3_small_100'")
    for variant, says in (near, ("nope", "see timm.list_models")):
        with pytest.raises(EdgeflError, match=f"model.image: .*timm has no model.*{says}"):
            edgefl.profile(tiny(data=DATA, model={"image": {"tower": "timm", "variant": variant}}))


def test_the_protocol_of_towers_stays(tiny: Tiny) -> None:
    assert not isinstance(registry.get("tower", "vit"), PlainTower)
    assert isinstance(registry.get("tower", "timm"), PlainTower)
    assert MODALITIES["image"].tower == "vit"


AUXILIARY = """
import edgefl
import torchvision
from torch import nn


class Short(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 4, 4), nn.Linear(512, 1024)
        self.own = nn.Linear(512, classes)

    def forward(self, image):
        maps = self.first(image).relu().flatten(1)
        return (self.second(maps), self.own(maps)) if self.training else self.second(maps)


@edgefl.register("tower", "auxiliary")
class Net(nn.Module):
    auxiliary_weight = 0.25

    def __init__(self, channels: int, classes: int, short: bool = True):
        super().__init__()
        if short:
            self.net = Short(classes)
        else:
            self.net = torchvision.models.googlenet(num_classes=classes, init_weights=False)
            self.net.fc = nn.Identity()
        self.width = 1024

    def forward(self, image):
        return self.net(image.expand(-1, 3, -1, -1))
"""


@pytest.fixture
def auxiliary(tmp_path: Path) -> Iterator[None]:
    import_torchvision()
    (tmp_path / "mine.py").write_text(AUXILIARY)
    registry.load_plug_in(tmp_path / "mine.py")
    yield
    registry.unload_plug_ins()


@pytest.mark.usefixtures("auxiliary")
def test_auxiliary_classifiers_of_a_tower_train_with_it(tiny: Tiny) -> None:
    check_auxiliary(tiny, short=True)


@pytest.mark.usefixtures("auxiliary")
@pytest.mark.slow(smaller="test_auxiliary_classifiers_of_a_tower_train_with_it")
def test_torchvisions_googlenet_trains_with_its_heads(tiny: Tiny) -> None:
    check_auxiliary(tiny, short=False)


def check_auxiliary(tiny: Tiny, short: bool) -> None:
    """The loss and its FLOPs are those of a step by hand."""
    wanted = tiny(data={**DATA, "size": 32}, model={"image": {"tower": "auxiliary", "short": short}})
    setup = compose(load(wanted))
    work = setup.method.work("image", 1)
    model: Any = models.build(work.model)
    batch = {"image": torch.randn(4, 1, 32, 32), "label": torch.arange(4)}
    torch.manual_seed(1)  # of dropout
    ctx = Context(work, model, setup.clients.client(0), torch.device("cpu"), {}, {})
    loss = ClassifyStep().loss(ctx, batch, "image", work.passes[0])
    assert not model.take_auxiliary_scores()

    torch.manual_seed(1)
    counter = FlopCounterMode(display=False)
    with counter:
        feature, *others = model.image.net(batch["image"].expand(-1, 3, -1, -1))
        scores = [model.image.head(feature), *others]
    losses = [nn.functional.cross_entropy(each, batch["label"]) for each in scores]
    torch.testing.assert_close(loss, losses[0] + 0.25 * sum(losses[1:]))
    loss.backward()
    assert all(value.grad.abs().sum() > 0 for value in model.image.parameters())
    predicted = predict(work, setup.clients.client(0), brief=True).steps.values()  # as a profile's, a batch of 8
    assert max(step.forward_flops for step in predicted) == 2 * counter.get_total_flops()
    model.eval()
    assert model.classify("image", batch).shape == (4, 12) and not model.take_auxiliary_scores()
