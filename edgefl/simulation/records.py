"""Records of verdicts, clients and the server's works, as they are written.

A client's record consists of a few numbers of its own and of the fields of its plan, which are serialised once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from edgefl.arrays import AnyArray, Floats, Integers
from edgefl.cost.client_cost import ComputeCost, compute_cost
from edgefl.devices.caps import CAPPED
from edgefl.planning.client_evaluation import Scoring
from edgefl.planning.eligibility import Verdict
from edgefl.planning.planner import Plan, exchange_record
from edgefl.planning.setup import Setup
from edgefl.records import clients as written
from edgefl.records.clients import UNMEASURED, MeasuredRecord, ScoredClient
from edgefl.records.eligibility import VerdictRecord as VerdictRecord
from edgefl.records.record import UNSET, Maybe, copy_fields, types_of
from edgefl.records.rounds import PLANNED, SUMMED, RoundSums, ServerWorkRecord
from edgefl.records.writing import RecordTemplate, inner, texts
from edgefl.schedules import Split
from edgefl.simulation.attackers import attack_column
from edgefl.simulation.closed_form import AT_COMPUTE, OUTCOMES, PHASES, Landings
from edgefl.simulation.learning import Arrival
from edgefl.simulation.roster import CHUNK, Roster
from edgefl.work import Description, Source, Work
from edgefl.work.halves import client_part
from edgefl.work.meter.trace import StepTrace
from edgefl.work.update import Update

_UNMEASURED = inner(UNMEASURED)

MOST_VERDICTS = 10_000
"""Largest fleet with a verdict record for each client; in larger ones clients with equal verdicts share a record.  A
choice: a record has about 480 bytes, so that a round in which all verdicts change adds 5 MB."""


# --- verdicts --------------------------------------------------------------------------------------------------------


def verdict_records(roster: Roster, clients: Integers, round: int) -> list[VerdictRecord]:
    """Records of whether these clients may take part, and of the predicted cost of their round.

    In a fleet above MOST_VERDICTS one record stands for all ``clients`` of one cell and verdict, and shows the client
    with the smallest margin.
    """
    shown = clients
    counts: Integers = np.ones(len(clients), np.int64)
    if len(roster.cell) > MOST_VERDICTS:
        shown, counts = _tightest(roster, clients)
    verdicts = roster.verdicts(shown)
    return [
        _verdict_record(roster, client, verdicts[index], round, count)
        for index, (client, count) in enumerate(zip(shown.tolist(), counts.tolist(), strict=True))
    ]


def _tightest(roster: Roster, clients: Integers) -> tuple[Integers, Integers]:
    """First client with the smallest margin for each cell and verdict, and the number of clients of each.

    Clients whose memory budget is their device's are counted apart from those whose owners grant less.
    """
    bindings = len(roster.names) + 1
    of_device = roster.planner.setup.fleet.memory_of_device[clients]
    code = (roster.cell[clients] * 2 + roster.eligible[clients]) * bindings + roster.binding[clients] + 1
    code = code * 2 + of_device
    size = len(roster.cells) * 2 * bindings * 2
    counts = np.bincount(code, minlength=size)
    least, share = np.full(size, np.inf), np.empty(len(clients))
    parts = [slice(i, i + CHUNK) for i in range(0, len(clients), CHUNK)]
    for part in parts:
        share[part] = _remaining_share(roster, clients[part])
        np.minimum.at(least, code[part], share[part])
    first = np.zeros(size, np.int64)
    for part in reversed(parts):
        tightest = np.flatnonzero(share[part] == least[code[part]])[::-1]
        first[code[part][tightest]] = clients[part][tightest]
    codes = np.flatnonzero(counts)
    # sorted by client, because a resumed run may number its cells differently
    codes = codes[np.argsort(first[codes])]
    return first[codes], counts[codes]


def _remaining_share(roster: Roster, clients: Integers) -> Floats:
    """Smallest remaining share of a budget, `[clients]`."""
    least = np.full(len(clients), np.inf)
    budgets = roster.budgets(clients)
    for name in roster.names:
        allowed = budgets[name]
        limited = np.isfinite(allowed) & (allowed > 0)
        cost = roster.of_cells(name)[roster.cell[clients]]
        least[limited] = np.minimum(least[limited], 1 - cost[limited] / allowed[limited])
    return least


def _verdict_record(roster: Roster, client: int, verdict: Verdict, round: int, clients: int) -> VerdictRecord:
    plan, same = roster.cells[roster.cell[client]], ("eligible", "binding", "memory_limit", "margins", "reason")
    capped = [] if roster.caps is None else [budget for budget in CAPPED if roster.caps.of(budget)]
    return VerdictRecord(
        round=round,
        client=client,
        clients=clients,
        **_assigned_fields(plan),
        **{name: getattr(verdict, name) for name in same},
        bytes_limit=verdict.limits.get("bytes") if "bytes" in capped else UNSET,
        joules_limit=verdict.limits.get("joules") if "joules" in capped else UNSET,
        peak_memory_bytes=UNSET if verdict.peak_memory is None else int(verdict.peak_memory),
        costs=plan.amounts,
    )


# --- clients ---------------------------------------------------------------------------------------------------------


class ClientLines:
    """Lines of the table of clients, with a cache of the text that clients of a plan share.

    Those of ``real`` devices have the phases that only those have.
    """

    def __init__(self, setup: Setup, *, real: bool = False):
        self.setup = setup
        self._texts: dict[int, tuple[Plan, bytes]] = {}
        self._of_landings = OF_LANDINGS | (WAITS if isinstance(setup.schedule, Split) else {}) | (REAL if real else {})
        own = [
            "round", "base_round", "outcome", "phase", "staleness", "weight_factor", *self._of_landings,
            "executed_flops", "loss", *attack_column(setup, np.empty(0, np.int64)), *self._rates([], []),
            *(name for each in setup.fleet.columns for name in each.flight_fields),
        ]  # fmt: skip
        self._columns = RecordTemplate(written.FlightRecord, own, [written.TrainingRecord, written.Planned])

    def lines(
        self, landings: Landings, flown: Sequence[Arrival], updates: Sequence[Update | None], round: int
    ) -> list[bytes]:
        """One line for each landing, in order; a line has ``metrics`` if a step of the client's work wrote some."""
        _, plans, base_rounds, _, staleness, weight_factors = zip(*flown, strict=True)
        columns: dict[str, Sequence[bytes]] = {
            "round": [b"%d" % round] * len(plans),
            "base_round": texts(base_rounds),
            "outcome": [_OUTCOMES[outcome] for outcome in landings.outcome.tolist()],
            "phase": [_PHASES[phase] for phase in landings.phase.tolist()],
            "staleness": texts(staleness),
            "weight_factor": texts(weight_factors),
            **{name: texts(getattr(landings, of)) for name, of in self._of_landings.items()},
            "executed_flops": [b"%d" % flops for flops in executed_flops(self.setup, landings, plans)],
            "loss": [b"null" if of is None or of.loss is None else orjson.dumps(of.loss) for of in updates],
            **attack_column(self.setup, landings.client),
            **self._rates(plans, base_rounds),
            **{name: texts(values) for name, values in fleet_columns(self.setup, landings)},
        }
        # in a large fleet nothing is trained: a call for each line would take a fifth of the time
        measured = [
            _UNMEASURED if update is None else self._measured_json(client, plan, update)
            for client, plan, update in zip(landings.client.tolist(), plans, updates, strict=True)
        ]
        return self._columns.lines(columns, measured, list(map(self._text, plans)))

    def _rates(self, plans: Sequence[Plan], base_rounds: Sequence[int]) -> dict[str, Sequence[bytes]]:
        """The learning rate of each landing, that of the round in which it began; only where a schedule varies it."""
        setting = self.setup.method.setting
        if not any(training.lr_schedule.varies for training in setting.training.each):
            return {}
        known: dict[tuple[str, Hashable, int], bytes] = {}
        for plan, round in zip(plans, base_rounds, strict=True):
            if (key := (plan.kind, plan.variant, int(round))) not in known:
                pattern = setting.kinds[plan.kind].pattern
                training = self.setup.method.method_of(plan.variant)[0].setting.training.of(plan.kind)
                known[key] = orjson.dumps(training.scalars_of(int(round), pattern)["lr"])
        rounds = map(int, base_rounds)
        return {"lr": [known[plan.kind, plan.variant, round] for plan, round in zip(plans, rounds, strict=True)]}

    def _measured_json(self, client: int, plan: Plan, update: Update) -> bytes:
        """JSON of what was measured of a client's work, and of the metrics that its steps wrote, without brackets."""
        moved = update.exchanged
        if update.trace is None and update.peak_memory_bytes is None and not update.metrics and moved is None:
            return _UNMEASURED
        source, predicted = self.setup.clients.client(client), plan.compute
        measured = _measured_fields(client_part(plan.form), source, predicted, update.trace, update.peak_memory_bytes)
        exchanged = UNSET if moved is None else written.ExchangedRecord(**vars(moved))
        return inner(written.TrainingRecord(**measured, metrics=update.metrics or UNSET, exchanged=exchanged))

    def _text(self, plan: Plan) -> bytes:
        """JSON of the fields that all clients of a plan share, without brackets."""
        entry = self._texts.get(id(plan))  # which holds the plan, so that no other gets its id
        if entry is None:
            moved = {**copy_fields(written.Downloads, plan.traffic), **copy_fields(written.Uploads, plan.traffic)}
            exchange = exchange_record(plan.compute.exchange)
            planned = written.Planned(**_assigned_fields(plan), **_costs(plan.compute), **moved, exchange=exchange)
            entry = self._texts[id(plan)] = (plan, inner(planned))
        return entry[1]

    def keep_only(self, plans: Iterable[Plan]) -> None:
        """Drop the cached text of all other plans."""
        kept = {id(plan) for plan in plans}
        self._texts = {key: entry for key, entry in self._texts.items() if key in kept}


_OUTCOMES = [orjson.dumps(name) for name in OUTCOMES]
_PHASES = [orjson.dumps(name) for name in PHASES]
OF_LANDINGS = {
    "client": "client", "slow_down": "slow", "dispatched_virtual_seconds": "began", "ended_virtual_seconds": "ended",
    **{
        name: name for name in (
            "download_seconds", "compute_seconds", "upload_seconds", "virtual_seconds", "energy_joules",
            "carried_download_bytes", "carried_upload_bytes", "lost_download_bytes", "lost_upload_bytes",
        )
    },
}  # fmt: skip
"""Fields of a record that are columns of ``Landings``, with their names there."""
WAITS = {"server_wait_seconds": "server_wait_seconds"}
"""The same that a split model adds: seconds of waiting for the server's device."""
REAL = {"start_up_seconds": "start_up_seconds", "metering_seconds": "metering_seconds"}
"""The same that real devices add."""


def fleet_columns(setup: Setup, landings: Landings) -> Iterator[tuple[str, AnyArray]]:
    """The names and values `[landings]` of the fields that the fleet adds to the records of flights."""
    for each in setup.fleet.columns:
        yield from each.flight_columns(landings.client, landings.joules).items()


def executed_flops(setup: Setup, landings: Landings, plans: Sequence[Plan]) -> list[int]:
    """FLOPs that each of these flights executed."""
    throttling = setup.fleet.throttling
    columns = landings.phase, landings.compute_seconds, landings.whole_compute_seconds
    return [
        plan.flops if phase > AT_COMPUTE else plan.executed_flops(seconds, whole, throttling=throttling)
        for plan, phase, seconds, whole in zip(plans, *(column.tolist() for column in columns), strict=True)
    ]


def sums(setup: Setup, landings: Landings, plans: Sequence[Plan]) -> dict[str, float]:
    """Sums of the clients' records over these landings, by field."""
    own = [name for name in SUMMED if name in OF_LANDINGS]
    totals: dict[str, float] = {name: getattr(landings, name).sum().item() for name in own}
    totals |= {n: values.sum().item() for n, values in fleet_columns(setup, landings) if n in types_of(RoundSums)}
    totals["executed_flops"] = sum(executed_flops(setup, landings, plans))
    planned = [plan.sums for plan in plans]
    # FLOPs of a large cohort may exceed 63 bits
    large = any(max(numbers) > 2**62 // max(len(planned), 1) for numbers in set(planned))
    total = np.array(planned, dtype=object if large else np.int64).reshape(-1, len(PLANNED)).sum(0)
    return totals | {name: int(number) for name, number in zip(PLANNED, total, strict=True)}


def outcomes(landings: Landings) -> dict[str, int]:
    """Number of flights by outcome; outcomes without flights are left out."""
    counts = np.bincount(landings.outcome, minlength=len(OUTCOMES))
    return {name: int(count) for name, count in zip(OUTCOMES, counts, strict=True) if count}


# --- the server ------------------------------------------------------------------------------------------------------


def server_record(
    setup: Setup, work: Work, when: str, computed: ComputeCost, seconds: float, update: Update | None
) -> ServerWorkRecord:
    """Record of a work of the server; ``when`` names the point of the round at which it runs."""
    trace, peak = (None, None) if update is None else (update.trace, update.peak_memory_bytes)
    return ServerWorkRecord(
        when=when,
        kind=work.kind,
        steps=[p.step for p in work.passes],
        seconds=seconds,
        **copy_fields(written.WorkCost, computed),
        **_measured_fields(work, setup.clients.server(), computed, trace, peak),
    )


def scored_record(
    setup: Setup,
    scoring: Scoring,
    round: int,
    client: int,
    eligible: bool,
    update: Update | None,
    metrics: Mapping[str, float | None] | Maybe,
) -> ScoredClient:
    """Record of a client's work on its own held-out samples."""
    compute, source = scoring.compute, setup.clients.client(client)
    spent = ("download_seconds", "compute_seconds", "virtual_seconds", "energy_joules")
    trace, peak = (None, None) if update is None else (update.trace, update.peak_memory_bytes)
    return ScoredClient(
        round=round,
        client=client,
        eligible=eligible,
        metrics=metrics,
        **_assigned_fields(scoring),
        **_measured_fields(scoring.form, source, compute, trace, peak),
        **_costs(compute),
        **copy_fields(written.Downloads, scoring.traffic),
        **{name: getattr(scoring.price, name).item() for name in spent},
    )


# --- groups of fields ------------------------------------------------------------------------------------------------


def _assigned_fields(plan: Plan | Scoring) -> dict[str, Any]:
    """The fields of ``Assigned``."""
    return {
        "kind": plan.kind, "device": plan.device.name, "link": plan.link.name, "samples": plan.samples,
        "stage": plan.stage.index, "part": plan.stage.label or UNSET,
    }  # fmt: skip


def _costs(cost: ComputeCost) -> dict[str, Any]:
    """The fields of ``ClientCostRecord``."""
    return copy_fields(written.ClientCostRecord, cost) | {
        "memory_bytes": written.MemoryParts(**cost.memory_bytes),
        "reserved_memory_bytes": cost.reserved_memory_bytes or UNSET,
    }


def _measured_fields(
    work: Description, source: Source, predicted: ComputeCost, trace: StepTrace | None, peak: int | None
) -> dict[str, Any]:
    """The fields of ``MeasuredRecord``."""
    if trace is None and peak is None:
        return copy_fields(MeasuredRecord, UNMEASURED)
    measured = None if trace is None else compute_cost(work, source, trace)  # a real device tells its peak alone
    return {
        "measured_peak_memory_bytes": peak,
        "measured_forward_flops": None if measured is None else measured.forward_flops,
        "measured_backward_flops": None if measured is None else measured.backward_flops,
        "memory_error": predicted.peak_memory_bytes / peak - 1 if peak else None,
    }
