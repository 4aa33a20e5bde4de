"""The sections of a scenario: the options model of each, and the field that a bare word sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel

from edgefl import registry
from edgefl.data import DataOptions
from edgefl.devices import FleetOptions
from edgefl.errors import EdgeflError
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.modalities import MODALITIES
from edgefl.models import ModelOptions
from edgefl.planning.payload_options import PayloadOptions
from edgefl.planning.privacy import PrivacyOptions
from edgefl.planning.round_options import EvaluationOptions, RoundOptions
from edgefl.planning.stop_options import StopOptions
from edgefl.registry.part_fields import Fields
from edgefl.training.options import ExecutorOptions, TrackerOptions
from edgefl.training.pretraining import PretrainOptions
from edgefl.work.training_options import TrainingOptions


@dataclass(frozen=True)
class Section:
    """One top-level section of a scenario.

    ``owner`` is the model of its fields.  Where a name chooses the fields, ``noun`` is the kind of registered object
    and ``default`` its default name.  ``short`` is the field that a bare word sets; with ``whole`` a bare word in an
    override also resets all other fields.  ``inner`` lists fields whose model depends on a name, each with the noun,
    the key of the name and the default name.  ``words`` lists other fields whose value may be a bare word or
    number, each with the key that it sets.  ``deep`` lists fields of fields like ``inner``, by dotted path, each with
    noun and key; ``*`` stands for the name itself.
    """

    title: str
    owner: type[BaseModel] | None = None
    short: str | None = None
    whole: bool = False
    noun: str | None = None
    default: str = ""
    inner: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    deep: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def key_of_word(self, where: str) -> str | None:
        """The key that a bare word as the value of a field, by dotted path, sets; None if there is no such key."""
        if where in self.inner or where in self.deep:
            return (self.inner.get(where) or self.deep[where])[1]
        return self.words.get(where)

    def model(self, data: Mapping[str, object]) -> type[BaseModel]:
        """The model of these fields.  Raises UnknownName if they name something that isn't registered."""
        if self.noun is None:
            assert self.owner is not None
            return self.owner
        return options_of(self.noun, cast(str, data.get("name", self.default)))

    def nested_model(self, path: tuple[str | int, ...], data: Any) -> type[BaseModel] | None:
        """The model of the value at ``path`` in the section, if a name in the value chooses it; else None."""
        if not isinstance(data, Mapping):
            return None
        where, above = ".".join(map(str, path)), ".".join(map(str, (*path[:-1], "*")))
        if where in self.inner:
            noun, key, default = self.inner[where]
            name = data.get(key, default)
        elif where in self.deep:
            noun, key = self.deep[where]
            name = data.get(key)
        elif above in self.deep:
            noun, name = self.deep[above][0], path[-1]
        else:
            return None
        try:
            return options_of(noun, name)
        except EdgeflError:
            return None


def options_of(noun: str, name: str) -> type[BaseModel]:
    """The fields of the method, schedule or tower registered as ``name``."""
    options: type[BaseModel] = getattr(registry.get(noun, name), "Options", Fields)
    return options


SECTIONS: dict[str, Section] = {
    "data": Section("the data set and its partition over clients", DataOptions, short="source"),
    "model": Section(
        "one tower per modality",
        ModelOptions,
        inner={modality: ("tower", "tower", each.tower) for modality, each in MODALITIES.items()},
    ),
    "adapter": Section(
        "parameters that train in place of the models' own", short="name", noun="adapter", default="none"
    ),
    "pretrain": Section("pretraining of towers at the server", PretrainOptions),
    "method": Section("the federated method", short="name", noun="method", default="fedavg"),
    "schedule": Section("which blocks train in which round", short="name", noun="schedule", default="end-to-end"),
    "training": Section(
        "local training of a client in a round",
        TrainingOptions,
        short="mode",
        inner={"optimizer": ("optimizer", "name", "adamw"), "lr_schedule": ("rate schedule", "name", "constant")},
    ),
    "payload": Section(
        "encoding of models and tables for transfer",
        PayloadOptions,
        inner={"down": ("codec", "dtype", "float32"), "up": ("codec", "dtype", "float32")},
    ),
    "aggregation": Section(
        "how the server combines updates",
        AggregationOptions,
        short="rule",
        inner={"rule": ("aggregation", "name", "mean"), "optimizer": ("server optimizer", "name", "average")},
    ),
    "privacy": Section("the account of noise that hides single clients", PrivacyOptions),
    "fleet": Section(
        "the clients' devices, links and budgets",
        FleetOptions,
        short="like",
        whole=True,
        words={"relays": "count"},
        deep={"failures.attack": ("attack", "name"), "availability.*": ("availability", "")},
    ),
    "round": Section(
        "client selection and the end of a round",
        RoundOptions,
        short="policy",
        inner={"policy": ("round policy", "name", "synchronous"), "selection": ("selection", "name", "random")},
    ),
    "executor": Section("where the real training runs", ExecutorOptions, short="name"),
    "tracker": Section("a log for another program's pages", TrackerOptions, short="name"),
    "evaluation": Section("when and on what models are evaluated", EvaluationOptions),
    "stop": Section("when a run ends before its last round", StopOptions),
}
