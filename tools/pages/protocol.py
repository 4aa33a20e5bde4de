"""The blocks of the page ``protocol.md``: what an author of a plug-in implements or receives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgefl import registry
from edgefl.data import Collection, DataSet, FolderRequest, FolderSet
from edgefl.devices import Availability, Budget, Price
from edgefl.methods import (
    ByCoordinate,
    ByUpdate,
    Cohort,
    ComparableUpdates,
    Kind,
    Method,
    ServerOptimizer,
    ServerState,
    Setting,
    Update,
)
from edgefl.methods.setting import ClientFacts
from edgefl.models.adapters import Adapter
from edgefl.models.client import ClientModel
from edgefl.planning import rules as planning_rules
from edgefl.schedules import EndedRound, Schedule, Stage
from edgefl.simulation import Policy, Selection
from edgefl.simulation.round_server import RoundServer
from edgefl.simulation.selection import Candidates, Chosen
from edgefl.simulation.selection.base import GroupDraw
from edgefl.testing.findings import CheckRule
from edgefl.training import Attack
from edgefl.work import Context, Edit, Item, Pass, Payload, RegisteredCodec, Scalars, Source, Step, Work
from edgefl.work.edits import RegisteredEdit, UploadingEdit
from edgefl.work.steps import Wrapper
from edgefl.work.tasks import Task
from tools.pages.classes import sections
from tools.pages.markdown import linked, oneline, registered, table

CLASSES: dict[str, tuple[type[Any], ...]] = {
    "works": (Work, Pass, Payload, Item, RegisteredCodec, Edit, Scalars),
    "steps": (Step, Wrapper, Context, ClientModel, Source),
    "edits": (RegisteredEdit, UploadingEdit),
    "methods": (Method, Setting, ClientFacts, Kind, ServerState, Update),
    "aggregation": (Cohort, ByUpdate, ByCoordinate, ComparableUpdates, ServerOptimizer),
    "data sets": (Collection, DataSet, FolderSet, FolderRequest),
    "schedules": (Stage, Schedule, EndedRound),
    "selections and policies": (Selection, GroupDraw, Candidates, Chosen, Policy, RoundServer),
    "budgets": (Budget, Price),
    "other parts": (Availability, Attack, Task, Adapter),
}
"""The classes of each block, in the order of the page."""

PARTS: dict[str, tuple[str, str]] = {
    "method": ("A subclass of `Method`, called with its options and a `Setting`", "own-method"),
    "schedule": (
        "A subclass of `Schedule`, called with its options and the blocks of each tower, `{tower: blocks}`",
        "own-schedule",
    ),
    "model": (
        "A function from a model's description (a mapping whose `name` is the entry point's) to a torch module",
        "own-method#a-model-of-another-form",
    ),
    "tower": (
        "A class with `Options`, `build(description, norm)` and, if it can read weights, `load(module, weights, "
        "description)`",
        "own-model#write-the-tower",
    ),
    "data set": (
        "A `DataSet`, a `FolderSet`, or a function `(options, *, tokens, seed)` that returns a `Federation`",
        "own-data#anything-else-a-function",
    ),
    "partition": (
        "A function `(labels, clients, argument, rng)` that returns for each client the positions of its samples",
        "own-data#a-partition-of-your-own",
    ),
    "step": ("A subclass of `Step`, called without arguments", "own-method#a-hook-on-the-gradients"),
    "edit": ("A class with the static methods of `RegisteredEdit`", "own-parts#an-edit"),
    "selection": (
        "A subclass of `Selection`, called with its options, the section `round` and the seed",
        "own-schedule#a-selection-and-a-round-policy",
    ),
    "round policy": (
        "A subclass of `Policy`, called with its options and the section `round`",
        "own-schedule#a-selection-and-a-round-policy",
    ),
    "budget": ("A subclass of `Budget`, called without arguments", "describe-a-device#write-a-budget-of-your-own"),
    "aggregation": (
        "A subclass of `ByUpdate` or `ByCoordinate`, called with its options and the section `aggregation`",
        "own-aggregation#a-rule",
    ),
    "server optimizer": (
        "A subclass of `ServerOptimizer`, called with its options and the section `aggregation`",
        "own-aggregation#a-server-optimizer",
    ),
    "codec": ("A subclass of `RegisteredCodec`, called with its options", "own-aggregation#a-codec"),
    "metric": (
        "A subclass of `edgefl.work.metrics.Metric`, called with its options, or a function of a confusion matrix",
        "own-parts#a-metric",
    ),
    "optimizer": (
        "A subclass of `torch.optim.Optimizer`, or of `edgefl.work.optimizer.optimizers.Optimizer`",
        "own-parts#an-optimizer",
    ),
    "rate schedule": ("A subclass of `edgefl.work.optimizer.rate_schedules.RateSchedule`", "own-parts#a-rate-schedule"),
    "availability": ("A subclass of `Availability`, called with its options and the seed", "own-parts#an-availability"),
    "attack": (
        "A subclass of `Attack`, called with its options, the number of classes and the seed of the training",
        "own-parts#an-attack",
    ),
    "task": ("A subclass of `Task`", "own-parts#a-task"),
    "adapter": ("A subclass of `Adapter`", "own-parts#an-adapter"),
    "profile library": (
        "The path of a folder with `devices/`, `networks/` and `fleets/`",
        "describe-a-device#share-profiles-as-a-package",
    ),
}
"""For each sort of part, what its name stands for, and the how-to page (with a heading) whose example registers one."""


def protocol_blocks() -> dict[str, str]:
    """Each block of the page by its name."""
    every = [each for classes in CLASSES.values() for each in classes]
    return {
        "entry points": table(("Group", "Kind", "What the name stands for", "Example"), _groups()),
        **{name: sections(classes, every) for name, classes in CLASSES.items()},
        "built-in steps": _built_in("steps"),
        "built-in edits": _built_in("edits"),
        "rules": "\n".join(f"- {rule}" for rule in rules()),
    }


def _groups() -> Iterator[tuple[str, str, str, str]]:
    names = {each.__name__ for classes in CLASSES.values() for each in classes}
    for kind, group in registry.GROUPS.items():
        what, example = PARTS[kind]
        name, _, heading = example.partition("#")
        link = f"[{name}](../guides/{name}.md{heading and f'#{heading}'})"
        yield f"`{group}`", kind, linked(what, names), link


def _built_in(group: str) -> str:
    rows = [
        (f"`{name}`", f"`{part.__module__}:{part.__name__}`", oneline(part.__doc__).removesuffix("."))
        for name, part in registered(group).items()
    ]
    return table(("Name", "Import path", "What it does"), rows)


def rules() -> list[str]:
    """Every rule that ``edgefl.testing`` holds a part to: the constants that are sentences."""
    constants = {**vars(planning_rules), **vars(CheckRule)}
    texts = (text for name, text in constants.items() if not name.startswith("__"))
    return list(dict.fromkeys(text for text in texts if isinstance(text, str) and " " in text))
