"""One mistake of each kind in parts of one's own: the message names the function, the file and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

import edgefl
from edgefl import registry
from edgefl.errors import EdgeflError
from edgefl.registry.registered import PARTS

HEAD = """
from dataclasses import replace
import numpy as np, torch
from pydantic import BaseModel
from torch import nn
import edgefl, edgefl.work.optimizer.optimizers as optimizers
from edgefl.data.collection import Collection, DataSet
from edgefl.devices import Availability
from edgefl.methods import ByUpdate, Method, ServerOptimizer
from edgefl.schedules import PARTS, Layerwise, Schedule, Stage
from edgefl.simulation import Selection, policies
from edgefl.simulation.selection import Chosen
from edgefl.work import RegisteredCodec, Item, Payload, Wrapper
from edgefl.work.metrics import Metric
"""
SCENARIO = {
    "name": "mistakes",
    "data": {"source": "digits", "clients": {"image": 4}, "partition": "iid", "validation": 0.05, "test": 0.05},
    "model": {"image": {"blocks": 2, "width": 8, "heads": 2, "patch": 4}},
    "schedule": {"name": "end-to-end", "rounds": 1},
    "training": {"batch": 64},
    "round": {"cohort": 2},
    "executor": {"name": "inline", "device": "cpu"},
}
SKIPPED = {"training": {"batch": 64, "mode": "none"}}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    registry.unload_plug_ins()
    PARTS.clear()
    registry.forget()


def refused(folder: Path, source: str, sections: dict[str, Any]) -> str:
    """What a run with the parts of this file is refused with, on its own line."""
    file = folder / "plug.py"
    file.write_text(HEAD + source)
    with pytest.raises(EdgeflError) as caught:
        registry.load_plug_in(file)
        edgefl.run({**SCENARIO, **sections}, out=folder / "run")
    return str(caught.value)


def part(kind: str, base: str, body: str, options: str = "") -> str:
    """A part named ``mine`` of a kind, a class ``Mine``."""
    made = indent(dedent(options + body).strip(), "    ")
    return f"@edgefl.register({kind!r}, 'mine')\nclass Mine({base}):\n{made}\n"


SCHEDULE = (
    "class Options(BaseModel):\n    name: str = 'mine'\n    rounds: int = 2\ndef __init__(self, options, blocks):\n"
)
STAGES = "    whole, zero = dict(blocks), dict.fromkeys(blocks, 0)\n    super().__init__(({},))"
MINE = "edgefl.register('metric', 'mine')(lambda {}: {})"
WRAPPED = part("method", "Method", "def work(self, kind, round):\n    return super().work(kind, round).around('step')")

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a method's signature": (
        part("method", "Method", "def work(self, kind):\n    pass"),
        {},
        "plug:Mine has work(self, kind) in line 17 of plug.py, which is called with (self, kind, round)",
    ),
    "an inherited function of a plug-in's own base": (
        "class Base(Method):\n    def aggregate(self, state):\n        pass\n" + part("method", "Base", "pass"),
        {},
        "has aggregate(self, state) in line 16 of plug.py, which is called with (self, state, updates)",
    ),
    "a table that the server lacks": (
        part(
            "method",
            "Method",
            "def work(self, kind, round):\n"
            "    table = Payload('t', (Item('t', (3,), 'float32', 'table/t'),))\n"
            "    work = super().work(kind, round)\n"
            "    return replace(work, down=(*work.down, table))",
        ),
        {"method": "mine"},
        "'t' travels down as 'table/t', which the server doesn't have: put it into Method.initial",
    ),
    "a step that isn't registered": (
        part(
            "method", "Method", "def work(self, kind, round):\n    return super().work(kind, round).around('proximl')"
        ),
        {"method": "mine"},
        "method: mine has a pass with an unknown step 'proximl'; did you mean 'proximal'?",
    ),
    "a loss that isn't there": (
        WRAPPED + "@edgefl.register('step', 'step')\nclass Around(Wrapper):\n"
        "    def loss(self, ctx, batch, pattern, pass_):\n        super().loss(ctx, batch, pattern, pass_)\n",
        {"method": "mine"},
        "the loss of the step 'step' of the plug-in plug.py ({file}) around the step 'classify' is None; it must be",
    ),
    "a schedule's signature": (
        part("schedule", "Schedule", "def __init__(self, options):\n    pass"),
        {},
        "has __init__(self, options) in line 17 of plug.py, which is called with (self, options, blocks)",
    ),
    "a schedule without stages": (
        part("schedule", "Schedule", "    self.mine = 1", SCHEDULE),
        {"schedule": "mine"},
        "Mine.__init__() (the plug-in plug.py, {file}:20) doesn't call super().__init__ with the stages",
    ),
    "a stage deeper than the model": (
        part("schedule", "Schedule", STAGES.format("Stage(1, {t: 9 for t in blocks}, zero, PARTS, 2)"), SCHEDULE),
        {"schedule": "mine"},
        "has depth {'image': 9} in stage 1; allowed: 0 to 2",
    ),
    "a part that no model has": (
        part("schedule", "Schedule", STAGES.format("Stage(1, whole, zero, ('heads',), 2)"), SCHEDULE),
        {"schedule": "mine"},
        "trains heads in stage 1; allowed in parts: embedding, pooler, norm, rep, head",
    ),
    "a stage counted from 0": (
        part("schedule", "Schedule", STAGES.format("Stage(0, whole, zero, PARTS, 2)"), SCHEDULE),
        {"schedule": "mine"},
        "numbers its stages [0], not 1, 2, ...",
    ),
    "a schedule without rounds": (
        part("schedule", "Schedule", STAGES.format("Stage(1, whole, zero, PARTS, 0)"), SCHEDULE),
        {"schedule": "mine"},
        "has no round: its stages need one or more together",
    ),
    "a rule's signature": (
        part("aggregation", "ByUpdate", "def shares(self):\n    return [1.0]"),
        {},
        "has shares(self) in line 17 of plug.py, which is called with (self, group)",
    ),
    "a selection made of the section alone": (
        part(
            "selection", "Selection", "def __init__(self, options, seed):\n    pass\ndef pick(self, share):\n    pass"
        ),
        {},
        "has __init__(self, options, seed) in line 17 of plug.py, which is called with (self, options, section, seed)",
    ),
    "a rule that reads its options elsewhere": (
        part("aggregation", "ByUpdate", "def shares(self, group):\n    return [self.own.share] * len(group)"),
        {"aggregation": {"rule": "mine"}},
        "AttributeError: 'Mine' object has no attribute 'own'",
    ),
    "an optimizer that is never made": (
        part(
            "optimizer",
            "optimizers.Optimizer",
            "@classmethod\ndef build(cls, parameters, settings, implementation):\n    pass",
        ),
        {},
        "has build as a classmethod, which is called on an object: write self in place of cls",
    ),
    "a server's step without what it keeps": (
        part("server optimizer", "ServerOptimizer", "def step(self, value, change, kept):\n    return value + change"),
        {"aggregation": {"optimizer": "mine"}},
        "step() returned an object of type Tensor, not the new value and a mapping of what is kept",
    ),
    "a codec's wire": (
        part(
            "codec",
            "RegisteredCodec",
            "def wire(self, shape, dtype):\n    return [1]\n"
            "def encode(self, value, base):\n    pass\n"
            "def decode(self, wire, shape, dtype, base):\n    pass",
        ),
        {"payload": {"up": "mine"}},
        "wire() returned an object of type list, not a mapping of names to shapes and dtypes",
    ),
    "a metric's signature": (
        MINE.format("", "0"),
        {},
        "which is called with (confusion)",
    ),
    "a metric that isn't one number": (
        MINE.format("confusion", "confusion.sum(0)"),
        {"evaluation": {"metrics": ["mine"]}},
        "the metric 'mine' of the plug-in plug.py ({file}) must give a scalar tensor, not a tensor of shape [10]",
    ),
    "a metric without its value": (
        part("metric", "Metric", "name = ''"),
        {"evaluation": {"metrics": ["mine"]}},
        "the metric 'mine' of the plug-in plug.py ({file}) doesn't define value()",
    ),
    "a metric's numbers in another shape": (
        part("metric", "Metric", "adds = True\ndef add(self, scores, label, batch):\n    return scores"),
        {"evaluation": {"metrics": ["mine"]}},
        "add() gave a tensor [100, 10] for 100 samples, not [batch], which its sums say",
    ),
    "an optimizer without a rate": (
        part("optimizer", "torch.optim.Optimizer", "def __init__(self, params):\n    super().__init__(params, {})"),
        {},
        "takes no lr, the rate that training.lr gives it",
    ),
    "an availability's times": (
        part("availability", "Availability", "def until(self, clients, at):\n    return clients >= 0, at - 1"),
        {"fleet": {"availability": "mine"}, **SKIPPED},
        "Mine.until() (the plug-in plug.py, {file}:17) must give whether clients are available",
    ),
}
PICKS = {
    "list(share.clients)": "returned an object of type list, not a Chosen",
    "Chosen(share.clients, 4, 0)": "chose 4 clients where share.count is 2",
    "Chosen(share.clients[[0, 0]], 4, 0)": "chose a client twice: [0, 0]",
    "Chosen(np.array([77]), 4, 0)": "chose [77], which share.clients doesn't have",
    "Chosen(share.clients / 2, 4, 0)": "chose float64 [4], not the numbers of clients [n]",
}
CASES |= {
    f"a selection's {answer}": (
        part("selection", "Selection", f"def pick(self, share):\n    return {answer}"),
        {"round": {"cohort": 2, "selection": "mine"}, **SKIPPED},
        "Mine.pick() (the plug-in plug.py, {file}:17) " + told,
    )
    for answer, told in PICKS.items()
}
CASES |= {
    f"a policy's {answer}": (
        part("round policy", "policies.Synchronous", f"def updates_needed(self, cohort, asked):\n    return {answer}"),
        {"round": {"cohort": 2, "policy": "mine"}, **SKIPPED},
        f"Mine.updates_needed() (the plug-in plug.py, {{file}}:17) returned {told}, "
        "not a whole number of updates, 1 or more",
    )
    for answer, told in {"'two'": "'two'", "0": "0", "asked / 2": "1.0"}.items()
}
BUILD = """
def build(size, on_message):
    n = 40
    label, group, images = np.arange(n) % 2, np.arange(n), np.zeros((n, 1, 8, 8), np.uint8)
    texts = tuple(map(str, range(n)))
    return {}
edgefl.register('data set', 'mine')(DataSet(build))
"""
DATA = {
    "Collection(('a', 'b'), label, group, images / 255)": "images must be an array of bytes (uint8) [m, channels, size",
    "Collection(('a', 'b'), label, group, images[:, 0])": "[m, channels, size, size], not uint8 [40, 8, 8]",
    "Collection(('a', 'b'), label / 1, group, images)": "label must be an array of integers [n], not float64 [40]",
    "Collection(('a', 'b'), list(label), group, images)": "label must be an array of integers [n], not list",
    "Collection(('a', 'b'), label, group, text=label + n, texts=texts, masked=texts)": "an index into the 40 texts",
    "Collection(('a', 'b'), label, group, text=group, texts=texts)": "masked are the same texts without the words",
    "(images, label)": "mine: build returned an object of type tuple, not a Collection",
}
CASES |= {
    f"a data set's {answer}": (
        BUILD.format(answer),
        {"data": {**SCENARIO["data"], "source": "mine"}},  # type: ignore[dict-item]
        told,
    )
    for answer, told in DATA.items()
}
TOWER = """
class Net(nn.Module):
    def __init__(self, d, norm):
        super().__init__()
        self.width = 8
        self.embedding = nn.Conv2d(d["channels"], 8, 4, stride=4)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(d["depth"]))
    def forward(self, x):
        x = self.embedding(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return x
@edgefl.register("tower", "mine")
class Tower:
    class Options(BaseModel):
        tower: str = "mine"
        blocks: int = 2
        width: int = 8
    @staticmethod
    def build(description, norm):
        return Net(description, norm)
"""
TOWERS = {
    (
        "build(description, norm)",
        "build(description)",
    ): "build(description) in line 33 of plug.py, which is called",
    ("nn.ModuleList(nn.Linear(8, 8) for", "list(nn.Linear(8, 8) for"): "its blocks are list, not an nn.ModuleList",
    ('range(d["depth"])', "range(2)"): "it has 2 blocks where description['depth'] is 1",
    ("self.width = 8", "pass"): "set self.width in its constructor",
    (
        "self.width = 8",
        "self.width = 5",
    ): "forward gives [2, 4, 8] of image [2, 1, 8, 8], and [2, 8] is read",
    (".flatten(2).transpose(1, 2)", ""): "forward fails on image [2, 1, 8, 8] ({file}:25): ",
    ("return x", "return x * x.mean().item()"): "({file}:26): Tensor.item() cannot be called on meta tensors",
}
CASES |= {
    f"a tower's {right}, {wrong}": (
        TOWER.replace(right, wrong),
        {"model": {"image": {"tower": "mine"}}},
        f"tower mine: {told}" if not told.startswith(("build", "(")) else told,
    )
    for (right, wrong), told in TOWERS.items()
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_named_with_what_is_allowed(tmp_path: Path, case: str) -> None:
    source, sections, told = CASES[case]
    assert told.replace("{file}", str(tmp_path / "plug.py")) in refused(tmp_path, source, sections)


def test_a_tower_without_a_mistake_trains(tmp_path: Path) -> None:
    (tmp_path / "plug.py").write_text(HEAD + TOWER)
    registry.load_plug_in(tmp_path / "plug.py")
    edgefl.run({**SCENARIO, "model": {"image": {"tower": "mine"}}}, out=tmp_path / "run")


def test_an_optimizer_of_torch_makes_torch_no_plug_in(tmp_path: Path) -> None:
    source = TOWER.replace("return x\n", "return x @ x\n")
    told = refused(
        tmp_path,
        "edgefl.register('optimizer', 'theirs')(torch.optim.RMSprop)\n" + source,
        {"model": {"image": {"tower": "mine"}}},
    )
    assert f"({tmp_path / 'plug.py'}:27)" in told and "site-packages" not in told
