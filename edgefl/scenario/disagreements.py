"""Checks across sections: options that are valid alone and inconsistent together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
from pydantic import BaseModel

from edgefl import registry, seeds
from edgefl.data import DataOptions
from edgefl.data.missing import has_whole_samples
from edgefl.devices import FleetOptions, load_link
from edgefl.errors import EdgeflError, ScenarioError, UnknownName, suggestion
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.aggregation.rules import rule
from edgefl.modalities import KINDS, Kind
from edgefl.models import ModelOptions
from edgefl.planning.round_options import CohortSize, EvaluationOptions, RoundOptions, places
from edgefl.planning.stop_options import StopOptions
from edgefl.records.metrics import MEAN
from edgefl.scenario.document import Document, KeyPath
from edgefl.schedules import Schedule
from edgefl.work.optimizer.learning_rates import TOWERS, rate_settings
from edgefl.work.optimizer.rate_schedules import RateSchedule
from edgefl.work.training_options import TrainingOptions

if TYPE_CHECKING:
    from edgefl.work.description import MissingRates

MORE_UPDATES = 1000
"""How many more updates are tried, to say how many a rule needs that withstands no attacker.

Median needs 3, Krum 5, a trimmed mean 1 / ``trim``: so many find a share of 0.1 %, and end for a rule that never does.
"""


def disagreements(document: Document, parts: Mapping[str, BaseModel], names: Mapping[str, str]) -> list[ScenarioError]:
    """Errors between sections, such as client kinds without a tower and more stages than blocks."""
    model = cast(ModelOptions, parts["model"])
    errors = []
    clients = cast(DataOptions, parts["data"]).clients
    for kind, count in clients.items():
        for modality in kind.split("-"):
            if count and modality not in model.modalities:
                message = f"{kind} clients need a tower for {modality}: add model.{modality}"
                errors.append(document.error(("data", "clients", kind), message, at_key=True))
    for section in ("data", "evaluation"):
        missing = cast(DataOptions | EvaluationOptions, parts[section]).missing
        errors += _missing_errors(document, cast(DataOptions, parts["data"]), section, missing)
    total = sum(clients.values())
    fleet = cast(FleetOptions, parts["fleet"])
    for key, amounts in (("devices", fleet.devices), ("links", fleet.links)):
        counts = [amount for amount in amounts.values() if isinstance(amount, int)]
        if counts and sum(counts) != total:
            message = f"the counts add up to {sum(counts)}, but there are {total} clients"
            errors.append(document.error(("fleet", key), message))
    recomputed, most = cast(TrainingOptions, parts["training"]).recomputed_blocks, max(model.blocks.values(), default=0)
    if recomputed > most:
        message = f"{recomputed} blocks are more than any tower has: write at most {most}, or true for all"
        errors.append(document.error(("training", "checkpointing"), message))
    batch = cast(TrainingOptions, parts["training"]).batch
    for pattern in batch if isinstance(batch, dict) else ():
        if pattern not in KINDS:
            message = f"unknown kind {pattern!r}{suggestion(pattern, KINDS)}"
            errors.append(document.error(("training", "batch", pattern), message, at_key=True))
    round_ = cast(RoundOptions, parts["round"])
    present = [kind for kind, count in clients.items() if count]
    for named in cast(TrainingOptions, parts["training"]).by:
        if named in KINDS and named not in present:
            message = f"there are no {named!r} clients{suggestion(named, present)}"
            errors.append(document.error(("training", "by", named), message, at_key=True))
    for absent in round_.leave_out:
        if absent not in present:
            message = f"there are no {absent!r} clients{suggestion(absent, present)}"
            errors.append(document.error(("round", "leave_out"), message))
    cohort = round_.cohort
    if isinstance(cohort, dict):
        errors += _cohort_errors(document, round_, cohort, {kind: clients[kind] for kind in present})
    drawn: dict[str, int] = {kind: clients[kind] for kind in present if kind not in round_.leave_out}
    size = cohort if isinstance(cohort, int) else sum(places(cohort, drawn).values())
    if size > total:
        errors.append(
            document.error(("round", "cohort"), f"a cohort of {size} clients exceeds the {total} in data.clients")
        )
    elif drawn and round_.quorum > size and not registry.get("round policy", round_.policy_name).overlapping:
        message = f"a quorum of {round_.quorum} is never reached: a cohort has {size} clients"
        errors.append(document.error(("round", "quorum"), message))
    if cast(TrainingOptions, parts["training"]).mode == "none" and not registry.get(
        "selection", round_.selection_name
    ).is_blind(round_.selection):
        message = (
            f"{round_.selection_name} selects by losses, but training: none has none; use proxy: samples, or uniform"
        )
        errors.append(document.error(("round", "selection"), message))
    errors += _metric_errors(document, parts)
    errors += _attack_errors(document, cast(DataOptions, parts["data"]), fleet)
    errors += _aggregation_errors(document, cast(AggregationOptions, parts["aggregation"]), round_, size, fleet)
    errors += _relay_errors(document, cast(AggregationOptions, parts["aggregation"]), round_, total, fleet)
    if names["schedule"] == "split":
        errors += _split_errors(document, round_, cast(EvaluationOptions, parts["evaluation"]), fleet)
    try:
        schedule = registry.get("schedule", names["schedule"])(parts["schedule"], model.blocks)
    except EdgeflError as error:
        path = ("schedule", "stages") if ("schedule", "stages") in document.places else ("schedule",)
        wholes = (f"; the {tower} tower is one block, because {why}" for tower, why in model.whole.items())
        errors.append(document.error(path, f"{error}{''.join(wholes)}"))
    else:
        training = cast(TrainingOptions, parts["training"])
        if schedule.adapts and training.mode == "none":
            message = f"{names['schedule']} ends its stages by what a run learns, and training: none learns nothing"
            errors.append(document.error(("schedule",), message))
        errors += _rate_errors(document, training, model, len(schedule.stages))
        rounds = sum(stage.rounds for stage in schedule.stages)
        errors += _until_errors(
            document, parts["schedule"], schedule, cast(EvaluationOptions, parts["evaluation"]).every
        )
        errors += _reported_errors(document, cast(EvaluationOptions, parts["evaluation"]), rounds)
        shapes: dict[KeyPath, RateSchedule | None] = {("training",): training.lr_schedule}
        shapes |= {("training", "by", key): own.lr_schedule for key, own in training.by.items()}
        for place, shape in shapes.items():
            if shape is not None and (problem := shape.problem(rounds)):
                errors.append(document.error((*place, "lr_schedule", problem[0]), problem[1]))
    return errors


def _cohort_errors(
    document: Document, round_: RoundOptions, cohort: Mapping[str, CohortSize], clients: Mapping[str, int]
) -> list[ScenarioError]:
    """Sizes of a cohort by kind that name no kind of client, leave one out, or ask for more clients than there are."""
    at = ("round", "cohort")
    errors = []
    if not round_.stratify:
        errors.append(document.error(at, "sizes by kind need stratify: true, which draws from each kind by itself"))
    for kind, size in cohort.items():
        if kind not in clients:
            message = f"there are no {kind!r} clients{suggestion(kind, [*clients])}"
            errors.append(document.error((*at, kind), message, at_key=True))
        elif isinstance(size, int) and size > clients[kind]:
            message = f"{size} {kind} clients a round exceed the {clients[kind]} in data.clients"
            errors.append(document.error((*at, kind), message))
    unnamed = [kind for kind in clients if kind not in cohort and kind not in round_.leave_out]
    for kind in () if errors else unnamed:  # else it may be the one whose name is wrong
        message = f"says nothing of {kind} clients: give their size, or list them in round.leave_out"
        errors.append(document.error(at, message))
    return errors


def _aggregation_errors(
    document: Document, aggregation: AggregationOptions, round_: RoundOptions, cohort: int, fleet: FleetOptions
) -> list[ScenarioError]:
    """Rules that need several updates at a time, under a policy that applies them one by one, or whose rounds never
    have as many as withstand one attacker, where some attack."""
    errors = []
    policy = round_.build_policy()
    attack = fleet.failures.attack
    if not policy.at_once and not aggregation.adds_up and attack is not None and attack.share:
        most, withstands = policy.holds(cohort), rule(aggregation).withstands
        if withstands(most) == 0:
            enough = next((m for m in range(most + 1, most + MORE_UPDATES) if withstands(m)), None)
            message = (
                f"{aggregation.rule_name} withstands no attacker in rounds of at most {most} updates ({policy.size}), "
                "and fleet.failures.attack has some"
            )
            message += f": it needs {enough}" if enough else ""
            errors.append(document.error(("aggregation", "rule"), message))
    if policy.at_once:
        reason = f"{round_.policy_name} applies updates one by one"
        if not aggregation.adds_up:
            message = (
                f"{aggregation.rule_name} needs several updates, but {reason}; write rule: mean, or policy: buffered"
            )
            errors.append(document.error(("aggregation", "rule"), message))
        if aggregation.compensation:
            message = f"compensation needs all updates of a cohort, but {reason}; write compensation: false"
            errors.append(document.error(("aggregation", "compensation"), message))
    return errors


def _relay_errors(
    document: Document, aggregation: AggregationOptions, round_: RoundOptions, clients: int, fleet: FleetOptions
) -> list[ScenarioError]:
    """What doesn't go with relays: too few clients, rounds that overlap, rules that compare updates, a shared line."""
    errors: list[ScenarioError] = []
    if fleet.relays is None:
        return errors
    path: KeyPath = ("fleet", "relays")
    if fleet.relays.count > clients:
        message = f"{fleet.relays.count} relays, but there are {clients} clients: write {clients} or fewer"
        errors.append(document.error((*path, "count") if (*path, "count") in document.places else path, message))
    if registry.get("round policy", round_.policy_name).overlapping:
        message = (
            f"a relay adds up the updates of a round that waits for its clients, and rounds of {round_.policy_name} "
            "don't: write policy: synchronous, or leave out fleet.relays"
        )
        errors.append(document.error(("round", "policy"), message))
    if not aggregation.adds_up:
        message = (
            f"{aggregation.rule_name} compares single updates, and a relay sends their sum alone: write rule: mean, or "
            "leave out fleet.relays"
        )
        errors.append(document.error(("aggregation", "rule"), message))
    if fleet.server_link is not None:
        message = "the server's line isn't shared by relays, each of which has its own: write server_link: null"
        errors.append(document.error(("fleet", "server_link"), message))
    return errors


def _split_errors(
    document: Document, round_: RoundOptions, evaluation: EvaluationOptions, fleet: FleetOptions
) -> list[ScenarioError]:
    """What doesn't go with a server that computes half of each client's model."""
    traced = next((name for name, amount in fleet.links.items() if amount and load_link(name).trace), None)
    faults: dict[KeyPath, str] = {}
    if registry.get("round policy", round_.policy_name).overlapping:
        faults["round", "policy"] = (
            f"under split the server has a half for each client of a round, and rounds of "
            f"{round_.policy_name} overlap: write policy: synchronous"
        )
    if fleet.relays is not None:
        faults["fleet", "relays"] = (
            "a relay computes nothing, and half of a split model would be behind it: leave it out"
        )
    if fleet.server_link is not None:
        faults["fleet", "server_link"] = "what a split model exchanges doesn't share the server's line: leave it out"
    if traced is not None:
        faults["fleet", "links"] = (
            f"{traced} has a trace, and the rates at which a split model exchanges tensors must "
            "stay as they are: take a link without a trace"
        )
    if fleet.failures.attack is not None:
        faults["fleet", "failures", "attack"] = "an attacker holds half of a split model: leave it out"
    if evaluation.clients:
        faults["evaluation", "clients"] = "a client can't score itself with half of a split model: leave it out"
    return [document.error(path, message) for path, message in faults.items()]


def _metric_errors(document: Document, parts: Mapping[str, BaseModel]) -> list[ScenarioError]:
    """Metrics to follow of kinds without clients, and where nothing is trained."""
    clients = cast(DataOptions, parts["data"]).clients
    kinds = [kind for kind, count in clients.items() if count]
    errors, until = [], getattr(parts["schedule"], "until", None)
    trains = cast(TrainingOptions, parts["training"]).mode != "none"
    followed: tuple[tuple[KeyPath, str | None], ...] = (
        (("stop", "metric"), cast(StopOptions, parts["stop"]).metric),
        (("evaluation", "best"), cast(EvaluationOptions, parts["evaluation"]).best),
        (("schedule", "until", "metric"), until.metric if until and trains else None),
    )
    for path, metric in followed:
        kind, dot, name = (metric or "").partition(".")
        if metric is None:
            continue
        if not trains:
            message = f"there are no metrics to follow, since training: none trains nothing: leave out {path[1]}"
        elif not (dot and name):
            message = f"a metric is written as kind and name, such as {kinds[0]}.accuracy, not {metric!r}"
        elif kind not in (*kinds, MEAN):
            message = f"there are no {kind!r} clients to evaluate{suggestion(kind, [*kinds, MEAN])}"
        else:
            continue
        errors.append(document.error(path, message))
    return errors


def _until_errors(document: Document, options: BaseModel, schedule: Schedule, every: int) -> list[ScenarioError]:
    """A metric that can end no stage of a schedule: too few evaluations in each, or a single stage."""
    until = getattr(options, "until", None)
    if until is None or schedule.shortest(every).rounds < schedule.rounds:
        return []
    most = max((stage.rounds for stage in schedule.stages if schedule.ends_early(stage)), default=0)
    name, message = "patience", f"{until.patience} evaluations after a stage's first end none of at most {most} rounds"
    message += " sooner: write a smaller patience, more rounds, or evaluation.every: 1"
    if not most:
        name, message = "metric", "no stage is followed by another one with rounds, and the last has all its rounds"
    elif every >= most and not until.is_loss:
        name, message = "metric", f"{until.metric} is known every {every} rounds, and a stage has {most} at most"
    return [document.error(("schedule", "until", name), message)]


def _reported_errors(document: Document, evaluation: EvaluationOptions, rounds: int) -> list[ScenarioError]:
    """What can't be the best of several rounds: more rounds than there are, one evaluation, scores on two splits."""
    path: KeyPath = ("evaluation", "reported")
    if evaluation.reported is None:
        return []
    last, every, final = evaluation.reported.last, evaluation.every, evaluation.final
    if last > rounds:
        return [document.error((*path, "last"), f"the last {last} rounds are more than the {rounds} of the schedule")]
    if not any(round % every == 0 for round in range(rounds - last + 1, rounds)):
        message = f"leaves one evaluation in the last {last} rounds, so none is the best: write evaluation.every: 1"
        return [document.error(("evaluation", "every"), message)]
    if evaluation.split != final:
        message = (
            f"scores on two splits have no best: the last round is scored on {final}, those before it on "
            f"{evaluation.split}; write evaluation.split: {final}"
        )
        return [document.error(path, message)]
    return []


def _attack_errors(document: Document, data: DataOptions, fleet: FleetOptions) -> list[ScenarioError]:
    """Attackers who change labels where no client trains with labels."""
    attack = fleet.failures.attack
    present = [kind for kind, count in data.clients.items() if count]
    if attack is None or not registry.get("attack", attack.name).labels:
        return []
    if any(data.like_of(kind) == "classify" for kind in present):
        return []
    message = f"{attack.name} changes nothing, since {' and '.join(present)} clients retrieve, which needs no labels"
    return [document.error(("fleet", "failures", "attack", "name"), message)]


def _rate_errors(
    document: Document, training: TrainingOptions, model: ModelOptions, stages: int
) -> list[ScenarioError]:
    """Learning rates of towers that the model doesn't have, and lists that don't fit the schedule's stages."""
    errors = []
    for key, rate in training.rates.items():
        path: KeyPath = ("training", "rates", key)
        tower = key.partition(".")[0]
        if tower in TOWERS and tower not in (*model.blocks, "joint"):
            towers = ", ".join(model.blocks)
            errors.append(document.error(path, f"the model has no {tower} tower, only {towers}", at_key=True))
        lr = rate_settings(rate).get("lr")
        if isinstance(lr, list) and len(lr) != stages:
            lr_path = (*path, "lr") if isinstance(document.data["training"]["rates"][key], dict) else path
            count = f"{stages} stage{'s' if stages > 1 else ''}"
            lists = f"lists {len(lr)} learning rate{'s' if len(lr) > 1 else ''}"
            message = f"{lists}, but the schedule has {count}: list as many, or one for all"
            errors.append(document.error(lr_path, message))
    return errors


def _missing_errors(
    document: Document, data: DataOptions, section: str, missing: Mapping[Kind, MissingRates] | None
) -> list[ScenarioError]:
    """Missing modalities of absent client kinds, and rates that leave no pairs to retrieve."""
    affected = {kind: rates for kind, rates in (missing or {}).items() if any(rates.values())}
    present = [kind for kind, count in data.clients.items() if count]
    message = ""
    if affected and not set(affected) & set(present):
        message = (
            f"modalities are missing only from {' or '.join(affected)} clients, but all clients are of the kinds "
            f"{', '.join(present)}"
        )
    for kind in [kind for kind in affected if kind in present and data.like_of(kind) == "retrieve"]:
        if not has_whole_samples(kind, affected[kind]):
            message = f"{kind} clients retrieve, which needs both modalities, but no sample would have both"
    return [document.error((section, "missing"), message)] if message else []


def data_errors(document: Document, data: DataOptions) -> list[ScenarioError]:
    """Unknown data sets and invalid partitions, found before the data are opened."""
    errors = []
    named: list[tuple[KeyPath, str]] = [(("data", "source"), data.source)] if isinstance(data.source, str) else []
    for key, names in {} if isinstance(data.source, str) else data.source.items():
        named += [(("data", "source", key), name) for name in ([names] if isinstance(names, str) else names)]
    for path, source in named:
        if source not in registry.names("data set"):
            unknown = UnknownName("data set", source, registry.names("data set"))
            errors.append(document.error(path, str(unknown)))
    for name in data.folders:
        if name not in registry.names("data set"):
            unknown = UnknownName("data set", name, registry.names("data set"))
            errors.append(document.error(("data", "folders", name), str(unknown), at_key=True))
    for kind, count in data.clients.items():
        name, argument = data.partition_of(kind) if count else ("iid", None)
        try:
            # with one client for all samples, only the name and the argument can be wrong
            generator = seeds.generator(0, "partition check")
            registry.get("partition", name)(np.zeros(100, np.int64), 1, argument, generator)
        except EdgeflError as error:
            errors.append(document.error(("data", "partition"), str(error)))
    return errors
