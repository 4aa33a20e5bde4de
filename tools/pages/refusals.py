"""The tables of refusals of reference/refusals.md: each method and each schedule is asked with each other part.

A combination is composed as a run composes it, on shapes without samples, and nothing is priced or trained.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from edgefl.errors import EdgeflError
from edgefl.scenario import load
from edgefl.setup.compose import compose
from tools.pages.markdown import listed, registered, table
from tools.pages.methods import scenario_with

LORA = "adapter={name: lora, rank: 4}"
SET: Mapping[str, Sequence[str]] = {
    "flexlora": ("schedule={name: flexlora, ranks: [4, 2]}", LORA),
    "frozen-prefix": ("schedule={name: frozen-prefix, blocks: 1}",),
    "profl": ("schedule=profl", "training.mode=real"),
    "smartfreeze": ("schedule=smartfreeze", "training.mode=real"),
    "lora": (LORA,),
    "dora": ("adapter={name: dora, rank: 4}",),
    "semi-synchronous": ("round={policy: semi-synchronous, window: 1 min}",),
}
"""What to set for a part that needs more than its name."""
DEFAULTS = ("mean", "none", "synchronous")
"""Names of parts that a scenario has without naming them."""
OTHERS = (
    "aggregation.optimizer=adam",
    "aggregation.clip=1",
    "aggregation.compensation=true",
    "training.optimizer=adamw",
    "training.optimizer=sgd",
    "training.accumulation=2",
    "training.step_in_backward=true",
    "training.precision=float64",
    "payload={down: int8, up: int8}",
    "payload.up={top_k: 10%}",
    "fleet.relays=2",
    "executor=processes",
    "executor=ray",
)
"""What else a method may refuse; where names of one group are alike in that, one stands for all."""
NOISE = ("aggregation={clip: 1, noise: 1}", "privacy.delta=1e-3", "round={selection: poisson, weighting: equal}")


def refusal_blocks() -> dict[str, str]:
    """What each method refuses under `end-to-end`, and each schedule with FedAvg."""
    schedules = [(name, each) for name, each in _named("schedules", "schedule={}") if name != "end-to-end"]
    changes = [each for _, each in schedules] + _changes()
    under = {name: (scenario_with("fedavg"), each) for name, each in schedules}
    return {
        "refusals of methods": _asked({name: (scenario_with(name), ()) for name in registered("methods")}, changes),
        "refusals of schedules": _asked(under, [*_changes(), *_models()]),
    }


def _changes() -> list[Sequence[str]]:
    groups = (
        ("adapters", "adapter={}"),
        ("aggregations", "aggregation={}"),
        ("policies", "round.policy={}"),
        ("attacks", "fleet.failures.attack={{name: {}, share: 40%}}"),
    )
    named = [change for group, written in groups for _, change in _named(group, written)]
    return [*named, *((each,) for each in OTHERS), NOISE]


def _named(group: str, written: str) -> Iterator[tuple[str, Sequence[str]]]:
    for name in registered(group):
        if name not in DEFAULTS:
            yield name, SET.get(name, (written.format(name),))


def _models() -> list[Sequence[str]]:
    """Towers that are built without a library, and the model of all modalities."""
    multiway = "model={multiway: {blocks: 2, width: 32, heads: 4, patch: 8, tokens: 8}}"
    return [
        ("model.image={tower: resnet}", "model.dimension=32"),
        ("model.text={tower: gru}", "model.dimension=32"),
        (multiway, "data.tasks={image-text: classify}"),
    ]


def _asked(bases: Mapping[str, tuple[dict[str, Any], Sequence[str]]], changes: Sequence[Sequence[str]]) -> str:
    """A row for each reason why changes are refused, with those who refuse them; and the changes that nobody does."""
    rows: dict[tuple[tuple[str, ...], str], list[str]] = {}
    said: dict[str, str] = {}
    nobody = []
    for change in changes:
        reasons: dict[str, list[str]] = {}
        for name, (scenario, own) in bases.items():
            if why := _refused(name, scenario, dict.fromkeys([*own, *change])):
                reasons.setdefault(said.setdefault(_sense(why, change), why), []).append(f"`{name}`")
        for why, names in reasons.items():
            rows.setdefault((tuple(names), why), []).append(_shown(change))
        nobody += [] if reasons else [_shown(change)]
    told = [(", ".join(names), "; ".join(each), why) for (names, why), each in rows.items()]
    return f"{table(('Refused by', 'With', 'Why'), told)}\n\nNone of them refuses {listed(nobody)}."


def _sense(why: str, change: Sequence[str]) -> str:
    """A reason without names of tensors and without those of what was set: equal ones are one reason."""
    names = "|".join(re.escape(word) for each in change for word in re.findall(r"[\w-]+", each.partition("=")[2]))
    return re.sub(rf"'[^']*'|\([\w./-]+\)|\b\w+\.[\w.]+|\b(?:{names})\b", "", why)


def _refused(name: str, scenario: dict[str, Any], overrides: Iterable[str]) -> str:
    """Why the combination is refused, in words that don't begin with its name; empty if it isn't."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a run that would take long
        try:
            compose(load(scenario, [*overrides]), trains=False)
        except EdgeflError as error:
            said = re.sub(r"^(?:--set .*?: )?[a-z_.]+: ", "", str(error))
            return re.sub(
                rf"^{name}: |(?P<it>^{name}|method {name!r})", lambda found: "it" if found["it"] else "", said
            )
    return ""


def _shown(change: Sequence[str]) -> str:
    """A change as a scenario writes it."""
    return " and ".join(f"`{each.partition('=')[0]}: {each.partition('=')[2]}`" for each in change)
