"""Records of verdicts, clients and the server's works, as they are written.

A client's record consists of a few numbers of its own and of the fields of its plan, which are serialised once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from edgefl.cost import ComputeCost, compute_cost
from edgefl.planning.client_evaluation import Scoring
from edgefl.planning.eligibility import Verdict
from edgefl.planning.planner import PLANNED, Plan
from edgefl.planning.setup import Setup
from edgefl.runs.tables import CARBON, SCORED, plain
from edgefl.simulation.attackers import attack_column
from edgefl.simulation.inflight.closed_form import OUTCOMES, PHASES, Integers, Landings
from edgefl.simulation.roster import CHUNK, Roster
from edgefl.training import Report
from edgefl.work import Description, Source, Work

MEASURED = ("measured_peak_memory_bytes", "measured_forward_flops", "measured_backward_flops", "memory_error")
"""Measured counterparts of predicted fields: None for works that weren't measured."""

UNMEASURED: Mapping[str, Any] = dict.fromkeys(MEASURED)
"""The MEASURED fields of a work that wasn't measured."""

PASSED = ("download_seconds", "compute_seconds", "load_seconds", "upload_seconds", "virtual_seconds", "energy_joules")
"""Fields of a plan's record that are replaced by the flight's own."""

CARRIED = ("carried_download_bytes", "carried_upload_bytes", "lost_download_bytes", "lost_upload_bytes")
"""Serialised bytes that crossed a link, and those of them that were of no use."""

JOULES_PER_KWH = 3.6e6


class Learnt(NamedTuple):
    """Training part of a flight's record: the loss, the MEASURED fields, and the metrics that steps wrote."""

    loss: float | None
    measured: Mapping[str, Any]
    metrics: Mapping[str, float] = {}


MOST_VERDICTS = 10_000
"""Largest fleet with a verdict record for each client; in larger ones clients with equal verdicts share a record."""


# --- verdicts --------------------------------------------------------------------------------------------------------


def verdict_records(roster: Roster, clients: Integers, round: int) -> list[dict[str, Any]]:
    """Records of whether these clients may take part, and of the predicted cost of their round.

    In a fleet above MOST_VERDICTS one record stands for all ``clients`` of one cell and verdict, and shows the client
    with the smallest margin.
    """
    shown, counts = clients, np.ones(len(clients), np.int64)
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


def _remaining_share(roster: Roster, clients: Integers) -> NDArray[np.float64]:
    """Smallest remaining share of a budget, `[clients]`."""
    least = np.full(len(clients), np.inf)
    budgets = roster.budgets(clients)
    for name in roster.names:
        allowed = budgets[name]
        limited = np.isfinite(allowed) & (allowed > 0)
        cost = roster.of_cells(name)[roster.cell[clients]]
        least[limited] = np.minimum(least[limited], 1 - cost[limited] / allowed[limited])
    return least


def _verdict_record(roster: Roster, client: int, verdict: Verdict, round: int, clients: int) -> dict[str, Any]:
    plan = roster.plan(client)
    return {
        "round": round,
        "client": client,
        "clients": clients,
        **_plan_fields(plan),
        "eligible": verdict.eligible,
        "binding": verdict.binding,
        "memory_limit": verdict.memory_limit,
        **({"joules_limit": verdict.joules_limit} if roster.spent is not None else {}),
        "margins": dict(verdict.margins),
        "reason": verdict.reason,
        "costs": plan.cost.budgets(roster.names),
    }


# --- clients ---------------------------------------------------------------------------------------------------------


class ClientLines:
    """Lines of the table of clients, with a cache of the text that clients of a plan share."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self._texts: dict[int, tuple[Plan, bytes]] = {}

    def lines(
        self,
        landings: Landings,
        plans: Sequence[Plan],
        round: int,
        base_rounds: Sequence[int],
        staleness: Sequence[int],
        weight_factors: Sequence[float],
        learnt: Sequence[Learnt],
    ) -> list[bytes]:
        """One line for each landing, in order; ``plans``, ``base_rounds``, ... have one entry for each.

        A line has ``metrics`` if a step of the client's work wrote some.
        """
        unmeasured = orjson.dumps(UNMEASURED)[1:-1]
        measured = [unmeasured if of.measured is UNMEASURED else _inner(of.measured) for of in learnt]
        measured = [m + b"," + _inner({"metrics": of.metrics}) if of.metrics else m
                    for m, of in zip(measured, learnt, strict=True)]  # fmt: skip
        columns: dict[str, Sequence[bytes]] = {
            "round": [b"%d" % round] * len(plans),
            "base_round": _texts(base_rounds),
            "client": _texts(landings.client),
            "outcome": [_OUTCOMES[outcome] for outcome in landings.outcome.tolist()],
            "phase": [_PHASES[phase] for phase in landings.phase.tolist()],
            "staleness": _texts(staleness),
            "weight_factor": _texts(weight_factors),
            "slow_down": _texts(landings.slow),
            **attack_column(self.setup, landings.client),
            **self._rates(plans, base_rounds),
            "dispatched_virtual_seconds": _texts(landings.began),
            "ended_virtual_seconds": _texts(landings.ended),
            **{name: _texts(getattr(landings, name)) for name in (*_SECONDS, "energy_joules", *CARRIED)},
            **{name: _texts(grams) for name, grams in carbon(self.setup, landings).items()},
            "loss": [b"null" if of.loss is None else orjson.dumps(of.loss) for of in learnt],
        }
        names = b",".join(b'"%b":%%b' % name.encode() for name in columns)
        line = b"{" + names + b",%b,%b\n"
        return [line % fields for fields in zip(*columns.values(), measured, map(self._text, plans), strict=True)]

    def _rates(self, plans: Sequence[Plan], base_rounds: Sequence[int]) -> dict[str, Sequence[bytes]]:
        """The learning rate of each landing, that of the round in which it began; only where a schedule varies it."""
        setting = self.setup.method.setting
        if not setting.training.lr_schedule.varies:
            return {}
        known: dict[tuple[str, int], bytes] = {}
        for plan, round in zip(plans, base_rounds, strict=True):
            if (key := (plan.kind, int(round))) not in known:
                pattern = setting.kinds[plan.kind].pattern
                known[key] = orjson.dumps(setting.training.scalars_of(key[1], pattern)["lr"])
        return {"lr": [known[plan.kind, int(round)] for plan, round in zip(plans, base_rounds, strict=True)]}

    def measured(self, client: int, plan: Plan, report: Report) -> Mapping[str, Any]:
        """The MEASURED fields of a client's work; UNMEASURED if it wasn't measured."""
        return _measured(plan.form, self.setup.clients.client(client), plan.cost.compute, report)

    def _text(self, plan: Plan) -> bytes:
        """JSON of the fields that all clients of a plan share, without the opening bracket."""
        entry = self._texts.get(id(plan))
        if entry is None:
            cost = {name: value for name, value in plan.cost.record().items() if name not in PASSED}
            entry = self._texts[id(plan)] = (
                plan,
                orjson.dumps({**_plan_fields(plan), **cost}, option=orjson.OPT_SERIALIZE_NUMPY)[1:],
            )
        return entry[1]

    def keep_only(self, plans: Iterable[Plan]) -> None:
        """Drop the cached text of all other plans."""
        kept = {id(plan) for plan in plans}
        self._texts = {key: entry for key, entry in self._texts.items() if key in kept}


_OUTCOMES = [orjson.dumps(name) for name in OUTCOMES]
_PHASES = [orjson.dumps(name) for name in PHASES]
_SECONDS = ("download_seconds", "compute_seconds", "upload_seconds", "virtual_seconds")


def _inner(fields: Mapping[str, Any]) -> bytes:
    """JSON text of these fields without the brackets."""
    return orjson.dumps(plain(fields))[1:-1]


def _texts(numbers: Any) -> list[bytes]:
    """JSON text of each number."""
    text = orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    return text.split(b",") if text else []


def carbon(setup: Setup, landings: Landings) -> dict[str, NDArray[np.float64]]:
    """Grams of CO2 equivalent by phase, `[landings]` each; empty without a carbon intensity."""
    intensity = setup.fleet.carbon_intensity
    if intensity is None:
        return {}
    return {name: joules * (intensity / JOULES_PER_KWH) for name, joules in zip(CARBON, landings.joules, strict=True)}


def sums(setup: Setup, landings: Landings, plans: Sequence[Plan]) -> dict[str, Any]:
    """Sums of the clients' records over these landings, by field."""
    totals: dict[str, Any] = {name: getattr(landings, name).sum().item() for name in (*CARRIED, "energy_joules")}
    totals |= {name: grams.sum().item() for name, grams in carbon(setup, landings).items()}
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
    setup: Setup, work: Work, when: str, computed: ComputeCost, seconds: float, report: Report | None
) -> dict[str, Any]:
    """Record of a work of the server; ``when`` names the point of the round at which it runs."""
    return {
        "when": when,
        "kind": work.kind,
        "steps": [p.step for p in work.passes],
        "seconds": seconds,
        "peak_memory_bytes": computed.peak_memory_bytes,
        "live_memory_bytes": computed.live_memory_bytes,
        "forward_flops": computed.forward_flops,
        "backward_flops": computed.backward_flops,
        **_measured(work, setup.clients.server(), computed, report),
    }


def scored_record(
    setup: Setup, scoring: Scoring, round: int, client: int, eligible: bool, report: Report | None
) -> dict[str, Any]:
    """Record of a client's work on its own held-out samples, without metrics; ``when`` tells it from training."""
    cost = scoring.cost.record()
    return {
        "round": round,
        "when": SCORED,
        "client": client,
        "eligible": eligible,
        **_plan_fields(scoring),
        **_measured(scoring.form, setup.clients.client(client), scoring.cost.compute, report),
        **{name: value for name, value in cost.items() if "upload" not in name and name != "load_seconds"},
    }


def _plan_fields(plan: Plan | Scoring) -> dict[str, Any]:
    return {
        "kind": plan.kind,
        "device": plan.device.name,
        "link": plan.link.name,
        "stage": plan.stage.index,
        **({"part": plan.stage.label} if plan.stage.label else {}),
        "samples": plan.samples,
    }


def _measured(work: Description, source: Source, predicted: ComputeCost, report: Report | None) -> Mapping[str, Any]:
    if report is None or report.measured is None:
        return UNMEASURED
    peak = report.measured.peak_memory_bytes
    measured = compute_cost(work, source, report.measured.trace)
    error = predicted.peak_memory_bytes / peak - 1 if peak else None
    return dict(zip(MEASURED, (peak, measured.forward_flops, measured.backward_flops, error), strict=True))
