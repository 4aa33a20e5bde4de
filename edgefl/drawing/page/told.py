"""What a report says in words: what was asked, and what a reader must know before the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from edgefl import registry, units
from edgefl.devices.budgets import BUDGETS, Budget, budget_named, field_of
from edgefl.devices.caps import CAPS
from edgefl.drawing.charts import Records
from edgefl.records.carbon import carbon_words
from edgefl.records.epsilon import privacy_words
from edgefl.records.relays import relay_words
from edgefl.runs import Run


def scenario_lines(run: Run, edgefl: str, labels: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The scenario of a run in a few lines, ``(name, words)``; ``labels`` are the runs of a comparison."""
    settings = run.settings
    fleet, rounds, training, data = settings.fleet, settings.round, settings.training, settings.data
    compared = settings.compare or {}
    lines = {
        "method": _section(run.scenario["method"]),
        "schedule": _section(run.scenario["schedule"]),
        "data": ", ".join(filter(None, (_words(data.source), _words(data.partition)))),
        "clients": _words({kind: n for kind, n in (data.clients or {}).items() if n}),
        "devices": _words(_shares(fleet.devices)),
        "links": _words(_shares(fleet.links)),
        "relays": _words(fleet.relays) if fleet.relays else "",
        "budgets": _budgets(fleet.budgets or {}),
        "rounds": _words(
            {"policy": rounds.policy, "cohort": _share(_shares(rounds.cohort)),
             "deadline": _with_unit(rounds.deadline, units.show_seconds), "quorum": rounds.quorum}
        ),
        "selection": _section(rounds.selection),
        "training": "none: costs are simulated" if training.mode == "none" else
        _words({"optimizer": training.optimizer, "lr": training.lr, "batch": training.batch,
                **({"epochs": training.epochs} if training.steps is None else {"steps": training.steps}),
                "precision": training.precision}),
        "seed": _words(settings.seed),
        "edgefl": edgefl,
    }  # fmt: skip
    for path in compared:
        lines.pop(str(path).removeprefix("round."), None)
    told = [(name, words) for name, words in lines.items() if words]
    if labels:
        told.insert(0, ("compares", f"{', '.join(map(str, compared))}: {'; '.join(labels)}"))
    return told


def _budgets(budgets: Mapping[str, object]) -> str:
    known = {name: name for name in registry.names("budget")}
    known |= {field_of(name): name for name in BUDGETS} | {name: cap.budget for name, cap in CAPS.items()}
    limits = {
        field.replace("_", " "): _limit(value, budget_named(known[field]) if field in known else None)
        for field, value in budgets.items()
        if field != "within_device"
    }
    words = [_words(limits)] if any(limits.values()) else []
    if budgets.get("within_device"):
        words.append("memory is never more than the device has")
    return "; ".join(words)


def _limit(value: Any, part: Budget | None) -> Any:
    """A budget's amount or range in words, or a mixture's, each with its share; without a ``part`` it has no unit."""
    if not isinstance(value, dict):
        value = [_ends(str(each)) for each in value] if isinstance(value, list) else value
        return _with_unit(value, part.quantity.show if part else "{:g}".format)
    return {_words(_limit(_ends(str(text)), part)): _share(share) for text, share in value.items()}


def _ends(text: str) -> Any:
    """An amount or both ends of a range, as a resolved scenario writes them as keys; other text as it is."""
    try:
        ends = [float(end.removesuffix(" B")) for end in text.split("..")]
    except ValueError:
        return text
    return text if not all(map(isfinite, ends)) else ends if len(ends) > 1 else ends[0]


def _with_unit(value: Any, show: Callable[[float], str]) -> Any:
    """A number with its unit, ``[low, high]`` as a range; other values as they are."""
    if isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value):
        return f"{show(value[0])} to {show(value[1])}"
    if isinstance(value, dict):
        return {name: _with_unit(each, show) for name, each in value.items()}
    return show(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _share(value: Any) -> Any:
    return units.show_share(value) if isinstance(value, float) and 0 < value <= 1 else value


def _shares(value: Any) -> Any:
    return {name: _share(each) for name, each in value.items()} if isinstance(value, dict) else value


def _section(value: Any) -> str:
    """A section with a name: the name, and those of its options that are set."""
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    options = {key: option for key, option in value.items() if key != "name" and option not in (None, {}, [], False)}
    return f"{value.get('name', '')}{f' ({_words(options)})' if options else ''}"


def _words(value: Any, depth: int = 0) -> str:
    """A value as text: ``image 12, text 10``."""
    if isinstance(value, dict):
        inner = ", ".join(f"{key} {_words(each, depth + 1)}" for key, each in value.items() if each is not None)
        return f"({inner})" if depth else inner
    if isinstance(value, list):
        return "[" + ", ".join(_words(each, depth + 1) for each in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: ""}[value]
    return str(value)


def besides(records: Records) -> list[str]:
    """What is said of a run below its matrix: updates, relays, CO2, and how far off predicted peaks were."""
    facts, totals = records.facts, records.facts.totals
    if not facts.rounds:
        return []
    told = [f"{totals.finished:,} updates arrived; {totals.late:,} clients were late, {totals.failed:,} failed."]
    error = max((row.memory_error for row in facts.costs if row.memory_error is not None), key=abs, default=None)
    if error is not None:
        within = f"within {abs(error) * 100:.2g} %" if abs(error) >= 5e-4 else "as predicted"
        told.append(f"Peaks were measured {within}.")
    more = relay_words(totals), carbon_words(totals), privacy_words(facts.privacy)
    told += [words[:1].upper() + words[1:] + "." for words in more if words]
    return told


def notices(records: Records, path: Any) -> list[str]:
    """What a reader must know before the figures: an unfinished run, one without training, one that diverged."""
    facts, told = records.facts, []
    if not facts.finished:
        done = f"{facts.rounds} rounds are recorded" if facts.rounds else "no round is recorded yet"
        told.append(f"This run isn't finished: {done}. Continue it with: edgefl run --resume {path}")
    if not facts.trained:
        told.append("This run simulates costs without training: there are no metrics.")
    elif facts.rounds and not facts.metrics:
        told.append("Nothing has been evaluated yet (evaluation.every).")
    if facts.stopped:
        told.append(f"This run {facts.stopped}.")
    if facts.diverged_rounds:
        numbers: Sequence[int] = facts.diverged_rounds
        told.append(f"The model diverged: weights, scores or losses weren't finite after round {numbers[0]}.")
    return told
