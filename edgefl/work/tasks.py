"""Tasks, each a registered part: what clients learn, by the steps that train it and score it.

``data.tasks`` gives a kind of client its task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

from edgefl import registry
from edgefl.errors import PluginError

Like = Literal["classify", "retrieve", "next-token"]


class Task:
    """What clients of a kind learn, ``data.tasks: {KIND: NAME}``.  Subclass, and give ``step`` and ``score``."""

    like: ClassVar[Like] = "classify"
    """Whose data and models it has: ``classify`` (samples with a class, a score for each), ``retrieve`` (pairs, a
    representation for each modality), ``next-token`` (texts with the tokens that follow, a causal tower)."""
    step: ClassVar[str]
    """The registered step that trains it."""
    score: ClassVar[str]
    """The registered step that scores it."""

    @classmethod
    def outputs(cls, classes: int) -> int:
        """How many scores the model of a task like ``classify`` gives, for data with so many classes."""
        return classes


class ClassifyTask(Task):
    """The class of a sample, by cross-entropy."""

    step, score = "classify", "score-classify"


class Retrieve(Task):
    """Which of two modalities' samples belong together, by CLIP's loss."""

    like, step, score = "retrieve", "contrast", "score-retrieve"


class NextTokenTask(Task):
    """Each token of a text, from those before it."""

    like, step, score = "next-token", "next-token", "score-next-token"


def task_named(name: str) -> type[Task]:
    """The task registered as ``name``.  Raises UnknownName, and PluginError if it is broken."""
    part: type[Task] = registry.get("task", name)
    if part.like not in get_args(Like):
        allowed = ", ".join(get_args(Like))
        raise PluginError(f"{registry.describe_part('task', name)} is like {part.like!r:.60}; allowed: {allowed}")
    return part


def like(name: str) -> Like:
    """Whose data and models the task registered as ``name`` has.  Raises as ``task_named``."""
    return task_named(name).like


def facts_for(name: str, facts: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
    """What a data set determines of a model, by modality, with the task's number of ``classes``."""
    outputs = task_named(name).outputs
    return {
        modality: {**each, "classes": outputs(each["classes"])} if "classes" in each else each
        for modality, each in facts.items()
    }
