"""What a run with noise can't have, because the sum or its account would be another than it says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgefl import registry
from edgefl.devices.availability import Always
from edgefl.methods import Method
from edgefl.methods.setting import tensors_of
from edgefl.planning.privacy import PrivacyAccount, RoundDraw
from edgefl.planning.setup import Setup
from edgefl.scenario import Scenario
from edgefl.scenario.document import KeyPath
from edgefl.work import Work
from edgefl.work.sums import is_averaged

Fault = tuple[KeyPath, str]
"""The field that is wrong, and what is wrong with it."""
OF_DATA = ("flops", "seconds", "joules")
"""Budgets that a client with more samples needs more of."""


def private_faults(scenario: Scenario, setup: Setup, works: list[Work]) -> Iterator[Fault]:
    """What is wrong with noise or the section ``privacy``, given the ``works`` of the first round; nothing without."""
    aggregation, privacy = scenario.aggregation, scenario.privacy
    is_noisy = aggregation.noise is not None or privacy.epsilon is not None
    if is_noisy or aggregation.secure is not None:
        yield from _faults_of_sums(scenario, setup, works)
    if aggregation.secure is not None:
        yield from _faults_of_secure_sums(scenario, setup)
    if not is_noisy:
        if privacy.delta is not None:
            yield ("privacy", "delta"), "nothing is counted without noise: add aggregation.noise, or privacy.epsilon"
        return
    if privacy.delta is None:
        yield ("aggregation", "noise"), "nobody knows what it hides without an account: add privacy.delta, such as 1e-6"
    if aggregation.clip is None:
        yield ("privacy", "epsilon"), "noise hides an update of limited length only: add aggregation.clip"
    if aggregation.non_finite == "keep":
        yield ("aggregation", "non_finite"), "an infinite update can't be clipped: write non_finite: reject"
    yield from _faults_of_rounds(scenario, setup, works)
    yield from _faults_of_eligibility(scenario, setup)


def _faults_of_secure_sums(scenario: Scenario, setup: Setup) -> Iterator[Fault]:
    """What doesn't go with sums of masked integers."""
    at = "aggregation", "secure"
    if scenario.aggregation.noise is not None or scenario.privacy.epsilon is not None:
        yield at, "rounding to integers lengthens updates beyond clip, which noise is for: leave out one of both"
    if scenario.payload.codecs()[1] is not None:
        yield ("payload", "up"), "masked integers are sent as they are: leave it out, or write fewer aggregation.bits"
    if scenario.schedule_name == "split":
        yield at, "the server sees each batch of a split model: leave it out"
    if alone := next((kind for kind, n in setup.method.setting.cohort.items() if n < 2), None):
        yield ("round", "cohort"), f"the sum of one {alone} client hides nothing: ask for two or more of each kind"


def _faults_of_rounds(scenario: Scenario, setup: Setup, works: list[Work]) -> Iterator[Fault]:
    """Draws that no accountant covers, and rounds in which one client decides whether another one's update counts."""
    options, fleet = scenario.round, setup.fleet
    selection = registry.get("selection", options.selection_name)
    if selection.sampling is None:
        why = f"no accountant knows with which chance {options.selection_name} draws a client"
        yield ("round", "selection"), f"{why}: write selection: poisson"
    if selection.sampling == "without replacement" and scenario.privacy.accountant == "pld":
        why = f"pld doesn't count cohorts of a fixed size, which {options.selection_name} draws"
        yield ("privacy", "accountant"), f"{why}: write accountant: rdp, or round.selection: poisson"
    if options.over_selection:
        yield ("round", "over_selection"), "an update counts or not by the speed of others: leave it out"
    if options.quorum > 1:
        yield ("round", "quorum"), "a round that is left out tells how many came: write quorum: 1"
    if scenario.schedule_name == "split":
        if any(work.in_turn for work in (setup.restrict_to_stage(work, setup.schedule.stage(1)) for work in works)):
            yield ("schedule", "server"), "one half that clients train in turn has no noise: write server: per-client"
        if options.deadline is not None:
            why = "clients wait for each other at the server, so that one decides whether another one is late"
            yield ("round", "deadline"), f"{why}: leave it out"
    clocked = {
        "availability": not isinstance(fleet.availability, Always),
        "battery": fleet.battery is not None,
        "budgets": fleet.caps is not None,
        "server_link": fleet.server_link is not None and options.deadline is not None,
        "links": fleet.changing is not None and options.deadline is not None,
    }
    for field in (field for field, is_given in clocked.items() if is_given):
        end = " or round.deadline" if field in ("server_link", "links") else ""
        why = "who arrives depends on the clock, and so on who else was drawn"
        yield ("fleet", field), f"{why}: leave out {'limits per day or job' if field == 'budgets' else 'it'}{end}"
    if setup.schedule.adapts:
        yield ("schedule",), f"{scenario.schedule_name} ends stages by what clients report: take layerwise"


def _faults_of_sums(scenario: Scenario, setup: Setup, works: list[Work]) -> Iterator[Fault]:
    """What else than one sum of clipped changes the server makes of a cohort's updates."""
    method, name, options = setup.method, scenario.method_name, scenario.round
    own, field = type(method), ("method", "name")
    items = [(work, item) for work in works for payload in work.up for item in payload.items]
    table = next((item.source for _, item in items if not is_averaged(item.source)), None)
    statistic = next((item.name for work, item in items if item.name in tensors_of(work.model)[1]), None)
    if options.build_policy().overlapping:
        why = f"rounds of {options.policy_name} overlap, and noise and masks are for the sum of one cohort"
        yield ("round", "policy"), f"{why}: write policy: synchronous"
    elif not options.has_equal_weights:
        yield ("round", "weighting"), "samples would weigh an update beyond clip: write weighting: equal"
    if setup.fleet.relays is not None:
        yield ("fleet", "relays"), "each relay has a sum of its own: leave it out"
    if not scenario.aggregation.adds_up:
        why = f"{scenario.aggregation.rule_name} compares updates, and their sum alone is private"
        yield ("aggregation", "rule"), f"{why}: write rule: mean"
    elif setup.method.setting.averages_products:
        why = f"{scenario.schedule_name} multiplies the factors of each update, which have no common length"
        yield ("schedule",), f"{why}: take another schedule"
    elif method.has_other_draws:
        yield field, f"{name} draws cohorts of its own: take one that doesn't, such as fedavg"
    elif table is not None:
        why = f"{name} sends {table.removeprefix('table/')}, which isn't clipped with the model"
        yield field, f"{why}: take a method that averages models alone, such as fedavg"
    elif not method.adds_up or own.rebuild is not Method.rebuild:
        yield field, f"{name} makes something else of updates than their sum: take fedavg or fedprox"
    elif own.update_weight is not Method.update_weight:
        yield field, f"{name} weighs updates by what clients report: take fedavg or fedprox"
    if statistic is not None:
        why = f"{statistic} is a statistic of BatchNorm, which noise can make negative"
        yield ("model",), f"{why}: take a tower without BatchNorm"


def _faults_of_eligibility(scenario: Scenario, setup: Setup) -> Iterator[Fault]:
    """Eligibility by numbers of samples, or by what was drawn before."""
    options, clients = scenario.round, setup.clients
    if options.gate == "eligible":
        budgets, several = setup.budgets(slice(None)), len(setup.schedule.offered) > 1
        given = [name for name in OF_DATA if name in budgets and np.isfinite(budgets[name]).any()]
        vary = [k for k in clients.kinds if len(np.unique(clients.client_samples[setup.of_kind(k)])) > 1]
        if given and vary:
            why = f"a budget of {given[0]} lets {vary[0]} clients take part by their numbers of samples, which are data"
            yield ("round", "gate"), f"{why}: write gate: everyone, or give all equally many"
        if several and np.isfinite(budgets["bytes"]).any():
            why = "a budget of bytes depends on the copies that a client holds, and so on who was drawn before"
            yield ("round", "gate"), f"{why}: write gate: everyone"


def check_first_round(scenario: Scenario, setup: Setup) -> None:
    """Raise MethodError if the first round passes ``privacy.epsilon`` even where all clients fit, or can't be counted.

    Where fewer fit, more of them are drawn, which a run says before its first round.
    """
    sampling = registry.get("selection", scenario.round.selection_name).sampling
    kinds = {kind: count for kind, count in setup.drawn_kinds(1).items() if setup.participates(kind, 1)}
    if (scenario.aggregation.noise is None and scenario.privacy.epsilon is None) or sampling is None or not kinds:
        return
    draws = [RoundDraw(places, kinds.get(kind, sum(kinds.values()))) for kind, places in setup.seats(1).items()]
    likeliest = max(draws, key=lambda draw: draw.places / draw.clients)
    PrivacyAccount(scenario.privacy, sampling, [likeliest], scenario.aggregation.noise).check()
