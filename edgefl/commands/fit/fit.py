"""``edgefl fit``: the least change of a scenario that lets a device take part."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from edgefl import units
from edgefl.commands.compose import commonest_link, compose, predictor_of, scenario_of
from edgefl.commands.fit.bounds import Pricer, Question
from edgefl.commands.fit.changes import TIERS, Levels, axes_of, sets_of, steps_of
from edgefl.commands.fit.search import Search, worst
from edgefl.commands.profile.profile import largest
from edgefl.commands.progress import OnProgress, accepts_observe, messages, silent
from edgefl.devices import Device, load_device, load_link
from edgefl.devices.options import BUDGET_FIELDS, share_of_device
from edgefl.errors import ScenarioError, UnitError, UnknownName
from edgefl.planning import BUDGETS, Verdict
from edgefl.scenario import Scenario
from edgefl.schedules import Stage

MOST, FIRST = 200, 5
QUANTITIES = {
    "memory": units.BYTES,
    "flops": units.FLOPS,
    "bytes": units.BYTES,
    "seconds": units.SECONDS,
    "joules": units.JOULES,
}


@dataclass(frozen=True)
class Allowance:
    """What a round may use of a budget, inf without end, and who says so."""

    allowed: float
    source: str


@accepts_observe
def fit(
    scenario: str | os.PathLike[str] | dict[str, Any] | Scenario,
    overrides: Sequence[str] = (),
    *,
    device: str,
    link: str | None = None,
    kind: str | None = None,
    memory: object = None,
    flops: object = None,
    bytes: object = None,
    seconds: object = None,
    joules: object = None,
    any_stage: bool = False,
    epochs: bool = False,
    most: int = MOST,
    first: int | None = FIRST,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Find the least changes of a scenario that let clients on a device take part, for each kind by itself.

    Changes are tried in the order of how much they change what is learned: first those that only compute otherwise,
    then numerics, payloads, the schedule, the batch and, if asked for, the epochs.  What the scenario compares is left
    aside.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        overrides: Changes of single fields, ``"training.batch=8"``.
        device: The device that is to take part, a name of the library or a file.
        link: Its link; by default the fleet's most common one.
        kind: Only this kind of client.
        memory: Most bytes of live tensors, a number or ``"64 MiB"``.  By default the tighter of the device's own
            memory and the scenario's budget at its lowest.
        flops: Most FLOPs in a round, a number or ``"1 TFLOP"``; by default the scenario's budget.
        bytes: Most bytes down and up in a round, a number or ``"20 MB"``; by default the scenario's budget.
        seconds: Longest round, a number or ``"10 min"``; by default the tighter of the scenario's budget and deadline.
        joules: Most energy in a round, a number or ``"500 J"``; by default the scenario's budget.
        any_stage: Whether it is enough to fit in one stage of the schedule; by default all stages must fit.
        epochs: Whether fewer local epochs are among the changes.
        most: How many works may be predicted for a kind.
        first: How many answers are wanted for a kind; None finds all.
        on_progress: Called with the name of an event and its facts.

    Returns:
        Plain data: the ``budgets`` with where each comes from, and by kind ``fits``, ``as_it_stands``, ``solutions``
        (the least change first, each with its ``sets`` for ``--set``) and, where nothing fits, what comes ``nearest``.
        The page about JSON output has every field.

    Raises:
        ScenarioError: The scenario can't be run, or ``most`` or ``first`` is below 1.
        UnknownName: There is no such device, link or kind.
        UnitError: A budget can't be read, or is 0.
    """
    whole = scenario_of(scenario, overrides)
    target_device = load_device(device)
    allowances = allowances_of(
        whole, target_device, {"memory": memory, "flops": flops, "bytes": bytes, "seconds": seconds, "joules": joules}
    )
    for name, number in (("most", most), ("first", first)):
        if number is not None and number < 1:
            raise ScenarioError(f"{name} must be at least 1, not {number}")
    setup = compose(whole, messages(on_progress))
    if kind is not None and kind not in setup.clients.kinds:
        raise UnknownName("client kind", kind, setup.clients.kinds)
    target_link = load_link(link) if link else commonest_link(setup.fleet)
    question = Question(
        whole, setup, predictor_of(whole), target_device, target_link, {n: a.allowed for n, a in allowances.items()},
        any_stage=any_stage, epochs=epochs, most=most, first=first,
    )  # fmt: skip
    found = {name: _of_kind(question, name, on_progress) for name in (setup.clients.kinds if kind is None else [kind])}
    return {
        "scenario": whole.name,
        "device": target_device.name,
        "link": target_link.name,
        "any_stage": any_stage,
        "budgets": {
            name: {"allowed": _finite(each.allowed), "source": each.source} for name, each in allowances.items()
        },
        "sets": ["compare=null"] if whole.compare else [],
        "kinds": found,
    }


def fits(found: Mapping[str, Any]) -> bool:
    """Whether every kind that is asked of anything fits, or does after a change."""
    return all(one["fits"] or one["solutions"] for one in found["kinds"].values() if one["rounds"])


# --- what the device may use -----------------------------------------------------------------------------------------


def allowances_of(scenario: Scenario, device: Device, given: Mapping[str, object]) -> dict[str, Allowance]:
    """What a round may use, by budget: the tightest of what is given or the scenario says, and of what the device has.

    Of a budget that clients draw from a range it is the lower end: what every owner allows.  Raises UnitError.
    """
    budgets, lowest = scenario.fleet.budgets, dict[str, list[Allowance]]()
    for name, field in BUDGET_FIELDS.items():
        said = lowest[name] = []
        if (value := given.get(name)) is not None:
            said.append(Allowance(_read(name, value), "as asked"))
            continue
        asked = getattr(budgets, field)
        if isinstance(asked, str):
            share = share_of_device(asked)[0]
            left = max(share * device.ram_bytes - device.runtime_overhead_bytes, 0)
            said.append(Allowance(float(int(left)), f"fleet.budgets.{field}: {units.show_share(share)} of device"))
        elif asked is not None:
            said.append(Allowance(float(asked[0]), f"fleet.budgets.{field}"))
        if name == "seconds" and scenario.round.deadline is not None:
            said.append(Allowance(float(scenario.round.deadline), "round.deadline"))
    has = max(device.usable_memory_bytes - device.runtime_overhead_bytes, 0)
    less = f"{units.show_bytes(device.usable_memory_bytes)} less {units.show_bytes(device.runtime_overhead_bytes)}"
    if given.get("memory") is None:
        lowest["memory"].append(Allowance(float(has), f"{device.name}: {less} for Python and torch"))
    return {
        name: min(said, key=lambda each: each.allowed) if said else Allowance(inf, "unlimited")
        for name, said in lowest.items()
    }


def _read(name: str, value: object) -> float:
    try:
        number = QUANTITIES[name].parse(value)
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None
    if not number:
        raise UnitError(f"{name}: a budget must be positive, not {value}; leave it out to take the scenario's")
    return float(number)


# --- one kind --------------------------------------------------------------------------------------------------------


def _of_kind(question: Question, kind: str, on_progress: OnProgress) -> dict[str, Any]:
    setup, most = question.setup, question.most
    client = largest(setup, kind)
    samples = int(setup.clients.client_samples[client])
    axes = axes_of(question.scenario, setup, kind, samples, growing=question.any_stage, epochs=question.epochs)

    def on_prediction(predicted: int, levels: Levels, stage: Stage) -> None:
        what = ", ".join(step.what for step in steps_of(axes, levels)) or "as it stands"
        on_progress("prepare", {"what": f"{kind}: work {predicted + 1} of at most {most}: {what}, stage {stage.index}"})

    pricer = Pricer(question, axes, kind, client, on_prediction)
    search = Search(pricer)
    nothing: Levels = (0,) * len(axes)
    found: dict[str, Any] = {"kind": kind, "samples": samples, "rounds": sum(s.rounds for s in pricer.spans(nothing))}
    if not found["rounds"]:
        return {**found, "fits": False, "as_it_stands": None, "solutions": []}

    unchanged = _described(search, nothing, None)
    found |= {"fits": unchanged["fits"], "as_it_stands": unchanged}
    if found["fits"]:
        return {**found, "solutions": [], "predictions": len(pricer.keys), "complete": True}
    answer = search.find()
    found["solutions"] = [_described(search, levels, unchanged) for levels in answer.solutions]
    if answer.nearest is not None:
        levels, times = answer.nearest
        found["nearest"] = {**_described(search, levels, unchanged), "excess": times}
    if not answer.solutions:
        found["unmet"] = list(answer.unmet)
    return {
        **found,
        "predictions": len(pricer.keys),
        "candidates": answer.of,
        "looked_at": answer.looked_at,
        "failed": [{"sets": sets_of(steps_of(axes, one)), "error": text} for one, text in answer.failed.items()],
        "complete": answer.complete,
    }


def _described(search: Search, levels: Levels, unchanged: Mapping[str, Any] | None) -> dict[str, Any]:
    """A candidate with what it costs: at worst by budget, and on average over the rounds."""
    pricer = search.pricer
    pricer.most, most = len(pricer.keys) + 10**6, pricer.most  # an answer is told in full
    rows = list(search.verdicts(levels))
    usual = list(search.verdicts(levels, late=False))
    pricer.most = most
    able = [row for row in rows if row[2].eligible]
    verdict = worst(able if search.any_stage and able else rows)
    rounds = sum(span.rounds for span, _, _ in rows)
    mean = {
        name: sum(span.rounds * verdict.costs[name] for span, _, verdict in usual) / rounds
        for name in ("seconds", "joules")
    }
    steps = steps_of(pricer.axes, levels)
    found: dict[str, Any] = {
        "changes": [{"what": step.what, "changes": TIERS[step.tier]} for step in steps],
        "sets": sets_of(steps),
        "fits": bool(able) if search.any_stage else len(able) == len(rows),
        "peak_memory_bytes": int(verdict.costs["memory"]),
        **_budgets(verdict),
        "seconds_per_round": mean["seconds"],
        "joules_per_round": mean["joules"],
        "stages": [
            {
                "stage": stage.index,
                **({"part": stage.label} if stage.label else {}),
                "first_round": span.first,
                "rounds": span.rounds,
                "eligible": each.eligible,
                "reason": each.reason,
                **_budgets(each),
            }
            for span, stage, each in rows
        ],
    }
    for name in ("seconds", "joules"):
        before = unchanged[f"{name}_per_round"] if unchanged else mean[name]
        found[f"{name}_ratio"] = mean[name] / before if before else None
    return found


def _budgets(verdict: Verdict) -> dict[str, Any]:
    """Costs and margins in bytes, FLOPs, seconds and joules; None where a margin has no end."""
    return {
        "binding": verdict.binding,
        "costs": {name: verdict.costs[name] for name in BUDGETS},
        "margins": {name: _finite(verdict.margins[name]) for name in BUDGETS},
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
