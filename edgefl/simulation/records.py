"""Records: what the simulation says of verdicts, clients and the server's works, as they are written.

A client's record is a few numbers of its own beside what it shares with all that are alike, which becomes text once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from edgefl.cost import ComputeCost, compute_cost
from edgefl.planning.eligibility import BUDGETS, Verdict
from edgefl.planning.planner import PLANNED, Plan
from edgefl.planning.setup import Setup
from edgefl.runs.tables import plain
from edgefl.simulation.inflight.closed_form import OUTCOMES, PHASES, Integers, Landings
from edgefl.simulation.roster import CHUNK, Roster
from edgefl.training import Report
from edgefl.work import Source, Work

MEASURED = ("measured_peak_memory_bytes", "measured_forward_flops", "measured_backward_flops", "memory_error")
"""Measured twins of what was predicted: None where nothing was metered."""

UNMEASURED: Mapping[str, Any] = dict.fromkeys(MEASURED)
"""Of a work that wasn't metered."""

PASSED = ("download_seconds", "compute_seconds", "load_seconds", "upload_seconds", "virtual_seconds", "energy_joules")
"""Of a plan's record what a flight has its own figures for."""

CARRIED = ("carried_download_bytes", "carried_upload_bytes", "lost_download_bytes", "lost_upload_bytes")
"""Serialised bytes that crossed a link, and those of them that came to nothing."""

MOST_VERDICTS = 10_000
"""Clients up to which each has verdicts of its own; of more, those that are alike share a record."""


# --- verdicts --------------------------------------------------------------------------------------------------------


def verdict_records(roster: Roster, clients: Integers, round: int) -> list[dict[str, Any]]:
    """Whether these clients may take part, and what their round would cost.

    In a fleet above MOST_VERDICTS a record stands for all ``clients`` of one cell and verdict, and shows the one with
    the least room.
    """
    shown, counts = clients, np.ones(len(clients), np.int64)
    if len(roster.cell) > MOST_VERDICTS:
        shown, counts = _least_room(roster, clients)
    verdicts = roster.verdicts(shown)
    return [
        _verdict_record(roster, client, verdicts[place], round, count)
        for place, (client, count) in enumerate(zip(shown.tolist(), counts.tolist(), strict=True))
    ]


def _least_room(roster: Roster, clients: Integers) -> tuple[Integers, Integers]:
    """Of the clients of each cell and verdict the first with the least room, and how many they are."""
    ways = len(BUDGETS) + 1
    code = (roster.cell[clients] * 2 + roster.eligible[clients]) * ways + roster.binding[clients] + 1
    size = len(roster.cells) * 2 * ways
    counts = np.bincount(code, minlength=size)
    least, room = np.full(size, np.inf), np.empty(len(clients))
    parts = [slice(i, i + CHUNK) for i in range(0, len(clients), CHUNK)]
    for part in parts:
        room[part] = _room(roster, clients[part])
        np.minimum.at(least, code[part], room[part])
    first = np.zeros(size, np.int64)
    for part in reversed(parts):
        tight = np.flatnonzero(room[part] == least[code[part]])[::-1]
        first[code[part][tight]] = clients[part][tight]
    there = np.flatnonzero(counts)
    # by client: a cell's number depends on when it was first met, which a resumed run doesn't know
    there = there[np.argsort(first[there])]
    return first[there], counts[there]


def _room(roster: Roster, clients: Integers) -> NDArray[np.float64]:
    """Least share of a budget that is left, `[clients]`."""
    least = np.full(len(clients), np.inf)
    budgets = roster.budgets(clients)
    for name in BUDGETS:
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
        **_who(plan),
        "eligible": verdict.eligible,
        "binding": verdict.binding,
        "margins": dict(verdict.margins),
        "reason": verdict.reason,
        "costs": plan.cost.budgets(),
    }


# --- clients ---------------------------------------------------------------------------------------------------------


class ClientLines:
    """Lines of the table of clients, and their sums."""

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
        discounts: Sequence[float],
        learnt: Sequence[tuple[float | None, Mapping[str, Any]]],
    ) -> list[bytes]:
        """A line for each landing, in order; ``plans``, ``base_rounds``, ... have one entry for each.

        ``learnt`` are loss and ``measured``.
        """
        plainly = orjson.dumps(UNMEASURED)[1:-1]
        own = [plainly if m is UNMEASURED else orjson.dumps(plain(m))[1:-1] for _, m in learnt]
        columns: dict[str, Sequence[bytes]] = {
            "round": [b"%d" % round] * len(plans),
            "base_round": _texts(base_rounds),
            "client": _texts(landings.client),
            "outcome": [_OUTCOMES[outcome] for outcome in landings.outcome.tolist()],
            "phase": [_PHASES[phase] for phase in landings.phase.tolist()],
            "staleness": _texts(staleness),
            "discount": _texts(discounts),
            "slow_down": _texts(landings.slow),
            "dispatched_virtual_seconds": _texts(landings.began),
            "ended_virtual_seconds": _texts(landings.ended),
            **{name: _texts(getattr(landings, name)) for name in (*_SECONDS, "energy_joules", *CARRIED)},
            "loss": [b"null" if loss is None else orjson.dumps(loss) for loss, _ in learnt],
        }
        names = b",".join(b'"%b":%%b' % name.encode() for name in columns)
        line = b"{" + names + b",%b,%b\n"
        return [line % fields for fields in zip(*columns.values(), own, map(self._text, plans), strict=True)]

    def measured(self, client: int, plan: Plan, report: Report) -> Mapping[str, Any]:
        """What was measured of a client's work beside what was predicted; UNMEASURED where nothing was."""
        return _measured(plan.work, self.setup.clients.client(client), plan.cost.compute, report)

    def _text(self, plan: Plan) -> bytes:
        """What all clients of a plan have in their records, without the bracket that opens it."""
        found = self._texts.get(id(plan))
        if found is None:
            cost = {name: value for name, value in plan.cost.record().items() if name not in PASSED}
            found = self._texts[id(plan)] = (
                plan,
                orjson.dumps({**_who(plan), **cost}, option=orjson.OPT_SERIALIZE_NUMPY)[1:],
            )
        return found[1]

    def forget(self, plans: Iterable[Plan]) -> None:
        """Keep no text but of these plans."""
        kept = {id(plan) for plan in plans}
        self._texts = {key: found for key, found in self._texts.items() if key in kept}


_OUTCOMES = [orjson.dumps(name) for name in OUTCOMES]
_PHASES = [orjson.dumps(name) for name in PHASES]
_SECONDS = ("download_seconds", "compute_seconds", "upload_seconds", "virtual_seconds")


def _texts(numbers: Any) -> list[bytes]:
    """Each number as JSON."""
    text = orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    return text.split(b",") if text else []


def sums(landings: Landings, plans: Sequence[Plan]) -> dict[str, Any]:
    """What these clients' records add up to."""
    found: dict[str, Any] = {name: getattr(landings, name).sum().item() for name in (*CARRIED, "energy_joules")}
    each = [plan.sums for plan in plans]
    # whole numbers of any size: FLOPs of a large cohort are more than 63 bits hold
    large = any(max(numbers) > 2**62 // max(len(each), 1) for numbers in set(each))
    total = np.array(each, dtype=object if large else np.int64).reshape(-1, len(PLANNED)).sum(0)
    return found | {name: int(number) for name, number in zip(PLANNED, total, strict=True)}


def outcomes(landings: Landings) -> dict[str, int]:
    """How many flights ended in which way; ways that nobody took are left out."""
    counts = np.bincount(landings.outcome, minlength=len(OUTCOMES))
    return {name: int(count) for name, count in zip(OUTCOMES, counts, strict=True) if count}


# --- the server ------------------------------------------------------------------------------------------------------


def server_record(
    setup: Setup, work: Work, when: str, computed: ComputeCost, seconds: float, report: Report | None
) -> dict[str, Any]:
    """What a work of the server cost; ``when`` says at which point of the round."""
    return {
        "when": when,
        "kind": work.kind,
        "steps": [p.step for p in work.passes],
        "seconds": seconds,
        "peak_memory_bytes": computed.peak_memory_bytes,
        "forward_flops": computed.forward_flops,
        "backward_flops": computed.backward_flops,
        **_measured(work, setup.clients.server(), computed, report),
    }


def _who(plan: Plan) -> dict[str, Any]:
    return {
        "kind": plan.kind,
        "device": plan.device.name,
        "link": plan.link.name,
        "stage": plan.stage.index,
        **({"part": plan.stage.label} if plan.stage.label else {}),
        "samples": plan.samples,
    }


def _measured(work: Work, source: Source, predicted: ComputeCost, report: Report | None) -> Mapping[str, Any]:
    if report is None or report.measured is None:
        return UNMEASURED
    peak = report.measured.peak_memory_bytes
    found = compute_cost(work, source, report.measured.trace)
    error = (predicted.peak_memory_bytes - peak) / peak if peak else None
    return dict(zip(MEASURED, (peak, found.forward_flops, found.backward_flops, error), strict=True))
