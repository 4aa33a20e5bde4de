"""Totals of a schedule: for a client that takes part in every round, for a round's cohort, and for the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from edgefl.arrays import AnyArray
from edgefl.commands.profile.answer import (
    Computed,
    Peaks,
    RoundCost,
    RoundTotals,
    ServerRow,
    TotalsRow,
    TrafficColumns,
)
from edgefl.commands.profile.sample_epsilon import sample_epsilon
from edgefl.cost.client_cost import ComputeCost, Traffic, traffic
from edgefl.cost.phases import Phases, numbers_of
from edgefl.cost.predict import work_key
from edgefl.cost.price import price_rounds
from edgefl.data import Federation
from edgefl.devices import Device, Link, Price
from edgefl.methods import Method, ServerState
from edgefl.planning.meta_state import shapes, shapes_alone
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.planning.subjects import Subject
from edgefl.planning.versions import ClientVersions, activations_address, final_blocks, stale
from edgefl.records.record import UNSET, copy_fields, types_of
from edgefl.schedules import Stage, keeps
from edgefl.work import Work

ADDED_UP = ("fvcore_macs", "forward_flops", "backward_flops", "download_bytes", "upload_bytes")
"""The costs that a round's totals sum over its clients and the server."""
COMPUTED = ADDED_UP[:3]
SPENT = ("virtual_seconds", "energy_joules")


@dataclass(frozen=True)
class RoundStretch:
    """Consecutive rounds of one stage that cost the same: they differ in learning rates at most.

    ``works`` has the work and its key by kind that takes part and variant, ``server`` the server's works as
    ``(when, work)``, ``places`` the expected number of clients of each kind in a round.
    """

    stage: Stage
    first: int
    rounds: int
    works: Mapping[tuple[str, Hashable], tuple[Work, str]]
    server: tuple[tuple[str, Work], ...]
    places: Mapping[str, Fraction]

    def is_alike(self, other: RoundStretch) -> bool:
        """Whether the rounds of ``other`` cost the same."""

        def server_costs(stretch: RoundStretch) -> list[Any]:
            return [(when, w.kind, w.passes, work_key(w.form)) for when, w in stretch.server]

        if self.stage is not other.stage or self.works.keys() != other.works.keys() or self.places != other.places:
            return False
        if any(work.form is not other.works[whose][0].form for whose, (work, _) in self.works.items()):
            return False
        return server_costs(self) == server_costs(other)


def stretches(planner: Planner, stage: int | None = None) -> list[RoundStretch]:
    """The rounds of the schedule, or of the stage with this index, merged into stretches."""
    setup = planner.setup
    state = _shapes(setup.method)
    spans: list[RoundStretch] = []
    for round in range(1, setup.schedule.rounds + 1):
        current = setup.schedule.stage(round)
        if stage not in (None, current.index):
            continue
        works = {
            (kind, variant): planner.work(kind, round, current, variant)
            for kind, variant in setup.variants
            if setup.participates(kind, round)
        }
        server = _server_works(setup, state, round, current) if state else ()
        span = RoundStretch(current, round, 1, works, server, _expected_places(setup, round))
        if spans and spans[-1].is_alike(span):
            spans[-1] = replace(spans[-1], rounds=spans[-1].rounds + 1)
        else:
            spans.append(span)
    return spans


# --- the server ------------------------------------------------------------------------------------------------------


def _shapes(method: Method) -> ServerState | None:
    """The server's initial state, as shapes without values; None for a method without works of the server."""
    if type(method).before is Method.before and type(method).after is Method.after:
        return None
    return shapes(method)


def _server_works(setup: Setup, state: ServerState, round: int, stage: Stage) -> tuple[tuple[str, Work], ...]:
    with shapes_alone(setup.method, "before() and after()"):
        works = [("before", w) for w in setup.method.before(state, round)]
        works += [("after", w) for w in setup.method.after(state, round)]
    return tuple((when, setup.restrict_to_stage(w, stage)) for when, w in works)


def server_rows(planner: Planner, spans: Sequence[RoundStretch], kind: str | None = None) -> list[ServerRow]:
    """Costs of the server's works in a round of each stretch, and of an evaluation at each stage.

    With ``kind``, only of works on the model of that kind.
    """
    setup = planner.setup
    assert isinstance(setup.clients, Federation)
    rows = []
    for span in spans:
        rows += [_server_row(planner, span, when, w) for when, w in span.server if kind in (None, w.kind)]
    split = setup.evaluation.split
    for stage in setup.schedule.stages:
        rounds = [span for span in spans if span.stage is stage]
        if not rounds:
            continue
        whole = replace(rounds[0], rounds=sum(span.rounds for span in rounds))
        for work, kinds in setup.evaluations(split, stage):
            patterns = {pattern for p in work.passes for pattern in p.patterns}
            if kind in (None, *kinds) and all(setup.clients.server_samples.get(split, {}).get(p) for p in patterns):
                rows.append(_server_row(planner, whole, f"evaluate {split}", work))
    return sorted(rows, key=lambda row: (row.first_round, row.evaluates))


def _server_row(planner: Planner, span: RoundStretch, when: str, work: Work) -> ServerRow:
    _, computed = planner.server(work)
    device = planner.setup.fleet.server
    seconds, busy = computed.cool(device, loads=False)
    return ServerRow(
        kind=work.kind,
        stage=span.stage.index,
        first_round=span.first,
        rounds=span.rounds,
        when=when,
        steps=[p.step for p in work.passes],
        **process_fields(computed, device),
        **copy_fields(Computed, computed),
        compute_seconds=seconds,
        energy_joules=Phases(numbers_of(0, 0, seconds, device, None, busy)).energy_joules,
        device=device.name,
    )


def process_fields(computed: ComputeCost, device: Device) -> dict[str, Any]:
    """The fields of ``Process`` of a process that computes this on a device."""
    return {
        **copy_fields(Peaks, computed),
        "memory_bytes": computed.memory_bytes,
        "runtime_overhead_bytes": device.runtime_overhead_bytes,
        "reserved_memory_bytes": computed.reserved_memory_bytes or UNSET,
        "process_memory_bytes": computed.tensor_bytes + device.runtime_overhead_bytes,
    }


# --- a round's cohort ------------------------------------------------------------------------------------------------


def round_totals(planner: Planner, spans: Sequence[RoundStretch], rows: Sequence[ServerRow]) -> list[RoundTotals]:
    """Cost of a round for all its clients and the server together, for each stretch; ``rows`` are the server's.

    The expectation over a uniform draw of the cohort from all clients that the method lets take part, eligible or not:
    the kind's places times the mean over its clients, of all variants.  Clients hold all frozen parameters, as in their
    rows, and train on full batches only.  Evaluation is not included.
    """
    totals = []
    for span in spans:
        setup = planner.setup
        by_kind = {kind: dict.fromkeys(ADDED_UP, Fraction(0)) for kind in (*span.places, "server")}
        for (kind, variant), (work, base) in span.works.items():
            _, moved = planner.downloads_and_traffic(work, base, span.stage, ())
            clients = setup.of_variant(kind, variant)
            places_of = span.places[kind] * Fraction(len(clients), max(len(setup.of_kind(kind)), 1))
            means, server = _mean(planner, clients, work, base)
            for name in ADDED_UP:
                by_kind[kind][name] += places_of * (means[name] + getattr(moved, name, 0))
                by_kind["server"][name] += places_of * server[name]
        for row in rows:
            if row.first_round == span.first and not row.evaluates:
                for name in COMPUTED:
                    by_kind["server"][name] += Fraction(getattr(row, name))
        totals.append(
            RoundTotals(
                stage=span.stage.index,
                first_round=span.first,
                rounds=span.rounds,
                selected={kind: _plain(n) for kind, n in span.places.items()},
                **{name: _plain(sum(part[name] for part in by_kind.values())) for name in ADDED_UP},
                by_kind={kind: RoundCost(**{n: _plain(part[n]) for n in ADDED_UP}) for kind, part in by_kind.items()},
            )
        )
    return totals


def _plain(value: Fraction | int) -> int | float:
    return int(value) if value == int(value) else float(value)


def _expected_places(setup: Setup, round: int) -> dict[str, Fraction]:
    """The expected number of clients of each kind that take part in a round, of the first cohort that is drawn."""
    seats, population = setup.seats(round), setup.drawn_kinds(round)
    kinds = {kind: n for kind, n in population.items() if setup.participates(kind, round)}
    if "" in seats:  # of all kinds together, by chance
        return {kind: Fraction(seats[""] * n, sum(population.values())) for kind, n in kinds.items()}
    return {kind: Fraction(seats[kind]) for kind in kinds}


def _mean(
    planner: Planner, clients: AnyArray, work: Work, base: str
) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Means of what a round over these clients computes and exchanges, and of the server's halves of their models.

    They have kept their activations if they keep any.
    """
    setup = planner.setup
    _, first, counts = np.unique(
        np.asarray(setup.clients.client_samples)[clients], return_index=True, return_counts=True
    )
    sums, server = dict.fromkeys(ADDED_UP, Fraction(0)), dict.fromkeys(ADDED_UP, Fraction(0))
    for index, count in zip(first, counts, strict=True):
        _, _, cost = planner.compute(work.form, work.scalars, base, int(clients[index]), again=keeps(work))
        for name in COMPUTED:
            sums[name] += int(count) * Fraction(getattr(cost, name))
        if cost.exchange is not None:
            for name in ADDED_UP:
                sums[name] += int(count) * getattr(cost.exchange, name, 0)
                server[name] += int(count) * Fraction(getattr(cost.exchange.server, name, 0))
    n = max(len(clients), 1)
    return {name: sums[name] / n for name in ADDED_UP}, {name: server[name] / n for name in ADDED_UP}


# --- one client in every round ---------------------------------------------------------------------------------------


@dataclass
class _Follower:
    """A client that takes part in every round of its kind, and its costs so far."""

    client_versions: ClientVersions = field(default_factory=ClientVersions)
    rounds: int = 0
    peak: int = 0
    per_sample: float = 0.0
    sums: dict[str, Any] = field(
        default_factory=lambda: {
            **dict.fromkeys((*COMPUTED, *SPENT), 0),
            **{name: {} if "_by_" in name else 0 for name in types_of(TrafficColumns)},
        }
    )
    """Columns of the client's row."""

    def spends(self, computed: ComputeCost, price: Price, times: int) -> None:
        self.peak = max(self.peak, computed.peak_memory_bytes)
        for name in COMPUTED:
            self.sums[name] += times * getattr(computed, name)
        for name in SPENT:
            self.sums[name] += times * getattr(price, name).item()

    def moves(self, moved: Traffic, times: int) -> None:
        for name, amount in copy_fields(TrafficColumns, moved).items():
            if isinstance(amount, Mapping):
                for key, n in amount.items():
                    self.sums[name][key] = self.sums[name].get(key, 0) + times * n
            else:
                self.sums[name] += times * amount


def _epochs(setup: Setup, kind: str, variant: Hashable, client: int) -> float:
    """How often a client trains on each of its samples in a round, on average."""
    training = setup.method.method_of(variant)[0].setting.training.of(kind)
    if training.steps is None:
        return training.epochs
    samples = int(setup.clients.client_samples[client])
    return training.steps * min(training.batch_of(setup.method.setting.kinds[kind].pattern), samples) / samples


def client_totals(
    planner: Planner, spans: Sequence[RoundStretch], shown: Sequence[Subject], device: Device, link: Link
) -> list[TotalsRow]:
    """Total costs of the largest client of each subject, in every round; each upload changes the server's version."""
    setup = planner.setup
    clients = {(subject.kind, subject.variant): subject.largest(setup) for subject in shown}
    followers = {whose: _Follower() for whose in setup.variants}
    epochs = {whose: _epochs(setup, *whose, client) for whose, client in clients.items()}
    versions: Counter[str] = Counter()
    for span in spans:
        # after a round only what that round changed is newer at the server than at the client: from the second on, all
        # rounds of a stretch are alike
        for times in (1, span.rounds - 1)[: min(span.rounds, 2)]:
            changed: set[str] = set()
            for whose, (work, base) in span.works.items():
                follower = followers[whose]
                old = stale(work, span.stage, follower.client_versions.versions_of(0), versions)
                down, moved = planner.downloads_and_traffic(work, base, span.stage, old, clients.get(whose))
                follower.client_versions.record_download(0, down, versions, once := activations_address(work))
                changed.update(setup.method.changed_addresses(work))
                follower.moves(moved, times)
                if whose in clients:
                    again = once is not None and once not in old
                    computed = planner.compute(work.form, work.scalars, base, clients[whose], again=again)[2]
                    price = price_rounds([(computed, moved)], device, link, throttling=setup.fleet.throttling)
                    follower.rounds += times
                    follower.per_sample += times * epochs[whose] * computed.fvcore_macs_per_sample
                    follower.spends(computed, price, times)
            versions.update(dict.fromkeys(changed, 1))
        if setup.schedule.deliver_final and setup.schedule.ends(span.first + span.rounds - 1):
            for whose, (work, _) in span.works.items():
                payload = final_blocks(work, span.stage)
                moved = traffic((payload,), (), planner.buffers)
                followers[whose].moves(moved, 1)
                phases = Phases(numbers_of(payload.serialised_bytes, 0, 0.0, device, link))
                followers[whose].sums["virtual_seconds"] += phases.seconds[0]
                followers[whose].sums["energy_joules"] += phases.energy_joules
                followers[whose].client_versions.record_download(0, (payload,), versions)
    return [_total(setup, subject, spans, followers[subject.kind, subject.variant]) for subject in shown]


def _total(setup: Setup, subject: Subject, spans: Sequence[RoundStretch], follower: _Follower) -> TotalsRow:
    sums, whose = follower.sums, (subject.kind, subject.variant)
    works = ((span.works[whose][0], span.rounds) for span in spans if whose in span.works)
    return TotalsRow(
        kind=subject.kind,
        variant=subject.shown_variant,
        rounds=follower.rounds,
        sample_epsilon=sample_epsilon(setup, subject, works),
        peak_memory_bytes=follower.peak,
        fvcore_macs_per_sample_all_rounds=follower.per_sample,
        traffic_bytes=sums["download_bytes"] + sums["upload_bytes"],
        serialised_traffic_bytes=sums["serialised_download_bytes"] + sums["serialised_upload_bytes"],
        **sums,
    )
