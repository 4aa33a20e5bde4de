"""``edgefl explain``: what a round's length is made of (its critical path), and why each absent client was absent."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.commands.progress import public_command
from edgefl.commands.recorded_rounds import (
    Span,
    check_client,
    finished_at,
    landed_in,
    one_run,
    phases_of,
    policy_name,
    policy_of,
    round_of,
    server_spans,
    total_clients,
    window_of,
)
from edgefl.errors import EdgeflError, RunError
from edgefl.report.facts import damage
from edgefl.runs import Run

Record = Mapping[str, Any]

TOOK_PART = "finished"


@public_command
def explain(run: str | os.PathLike[str], round: int, *, client: int | None = None) -> dict[str, Any]:
    """What a round's length is made of, and why each client that took no part was absent.

    Args:
        run: The folder of a run, finished or not.
        round: The number of a round that has ended, from 1.
        client: The number of a client, from 0, whose round is told in detail.

    Returns:
        Plain data: the round's times in virtual seconds, ``path`` (its critical path), ``shorter`` (what would have
        shortened it), ``took_part`` (clients), ``absent`` (clients with a reason each) and ``absent_by`` (their number
        by reason); with ``client`` also ``client``.

    Raises:
        RunError: There is no such run, round or client, the folder is a comparison, or its records were changed.
    """
    folder = one_run(run)
    try:
        return _explain(folder, round, client)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RunError(damage(folder, error)) from error


def _explain(run: Run, number: int, client: int | None) -> dict[str, Any]:
    record, flights, scenario = round_of(run, number), landed_in(run, number), run.scenario
    verdicts = _latest(run, number)
    clients = total_clients(list(verdicts.values()), scenario)
    if client is not None:
        check_client(run, client, clients)
    window = window_of(run)
    path = critical_path(record, flights, window)
    options = scenario["round"]
    alone = bool(getattr(policy_of(options), "waits_for_all", False)) and not options.get("over_selection")
    alone &= not (scenario.get("fleet") or {}).get("server_link")
    under_way = _under_way(run, record)
    absent = _absent(run, record, flights, verdicts, under_way)
    result = {
        "folder": str(run.path),
        "round": number,
        "stage": record["stage"],
        "policy": policy_name(options),
        "outcome": record["outcome"],
        "started_virtual_seconds": record["started_virtual_seconds"],
        "finished_virtual_seconds": finished_at(record),
        "virtual_seconds": record["virtual_seconds"],
        "clients": clients,
        "unavailable": record["unavailable"],
        "path": path,
        "shorter": what_shortens(record, path, flights, alone=alone),
        "took_part": sorted({flight["client"] for flight in flights if flight["outcome"] == TOOK_PART}),
        "absent": absent,
        "absent_by": _counted(absent),
    }
    if client is not None:
        result["client"] = _story(client, path, flights, verdicts, absent)
    return result


def _counted(absent: Sequence[Record]) -> dict[str, int]:
    """Number of absent clients by reason, most first."""
    counts: Counter[str] = Counter()
    for entry in absent:
        counts[entry["reason"]] += entry["clients"]
    return dict(counts.most_common())


def _latest(run: Run, number: int) -> dict[int, Record]:
    """The verdict of each client that counted in a round: the latest one up to it."""
    verdicts: dict[int, Record] = {}
    for verdict in run.each("eligibility"):
        if verdict["round"] <= number:
            verdicts[verdict["client"]] = verdict
    return verdicts


def _under_way(run: Run, record: Record) -> dict[int, Record]:
    """Flights that were sent off before the round's end and landed in a later round, or haven't landed yet."""
    if not record.get("under_way"):
        return {}
    number = record["round"]
    return {f["client"]: f for f in run.flights() if f["base_round"] <= number < f["round"]}


def _absent(
    run: Run,
    record: Record,
    flights: Sequence[Record],
    verdicts: Mapping[int, Record],
    under_way: Mapping[int, Record],
) -> list[dict[str, Any]]:
    """An entry for each client (in a fleet of over 10,000 for all alike) without an update in this round."""
    number, entries = record["round"], []
    finished = {flight["client"] for flight in flights if flight["outcome"] == TOOK_PART}
    ended: dict[int, Record] = {flight["client"]: flight for flight in flights}
    for client, flight in sorted(ended.items()):
        if client not in finished:
            entries.append(_entry(flight, flight["outcome"], _how_it_ended(flight)))
    for client, flight in sorted(under_way.items()):
        if client not in ended:
            why = f"sent off in round {flight['base_round']}, lands in round {flight['round']}"
            entries.append(_entry(flight, "under way", why))
    known = {*ended, *under_way}
    if any(verdict.get("clients", 1) > 1 for verdict in verdicts.values()):
        return [*entries, *_by_kind(record, [*ended.values(), *(under_way[c] for c in under_way.keys() - ended)])]
    offline = _offline(run, record, flights, list(verdicts))
    battery = bool((run.scenario.get("fleet") or {}).get("battery"))
    left_out = run.scenario["round"].get("leave_out") or ()
    for client, verdict in sorted(verdicts.items()):
        if client in known:
            continue
        kind = verdict["kind"]
        if kind in left_out:
            reason, why = "left out", f"round.leave_out has {kind} clients"
        elif kind not in record["clients"]:
            reason, why = "no part", f"the method has no work for {kind} clients in round {number}"
        elif not verdict["eligible"] and run.scenario["round"].get("gate", "eligible") == "eligible":
            reason, why = f"over budget: {verdict['binding']}", verdict["reason"]
        elif client in offline:
            reason, why = "offline", offline[client]
        else:
            reason = "not drawn"
            why = f"{record['selected']} clients were drawn of {sum(record['eligible'].values())} eligible ones"
            if record["unavailable"] and battery:
                reason, why = "not drawn or not ready", f"{why}, or its battery was below its reserve"
        entries.append(_entry(verdict, reason, why))
    for kind in left_out:
        entries += _unjudged(run, kind, verdicts, f"round.leave_out has {kind} clients", "left out")
    for kind in run.scenario["data"].get("clients") or {}:
        if kind not in record["clients"] and kind not in left_out:
            why = f"the method has no work for {kind} clients in round {number}"
            entries += _unjudged(run, kind, verdicts, why, "no part")
    return entries


def _by_kind(record: Record, flown: Sequence[Record]) -> list[dict[str, Any]]:
    """Entries for a fleet whose clients share verdicts: clients of each kind over a budget, and not drawn."""
    entries = []
    for kind, clients in record["clients"].items():
        eligible = record["eligible"].get(kind, 0)
        left = {
            "over budget": (clients - eligible, f"of {clients:,}; eligibility.jsonl has the budgets"),
            "not drawn or not ready": (
                eligible - sum(flight["kind"] == kind for flight in flown),
                f"{record['selected']:,} clients were drawn of {sum(record['eligible'].values()):,} eligible ones",
            ),
        }
        for reason, (many, why) in left.items():
            if many > 0:
                entry = {"client": None, "clients": many, "kind": kind, "device": None, "link": None}
                entries.append({**entry, "reason": reason, "why": why})
    return entries


def _unjudged(run: Run, kind: str, verdicts: Mapping[int, Record], why: str, reason: str) -> list[dict[str, Any]]:
    """One entry for the clients of a kind that was never judged, and has no records therefore."""
    asked = (run.scenario["data"].get("clients") or {}).get(kind, 0)
    left = asked - sum(int(v.get("clients", 1)) for v in verdicts.values() if v["kind"] == kind)
    entry = {"client": None, "clients": left, "kind": kind, "device": None, "link": None}
    return [{**entry, "reason": reason, "why": why}] if left > 0 else []


def _entry(record: Record, reason: str, why: str, clients: int = 1) -> dict[str, Any]:
    facts = {name: record[name] for name in ("client", "kind", "device", "link")}
    return {**facts, "clients": clients, "reason": reason, "why": why}


def _how_it_ended(flight: Record) -> str:
    seconds = flight["virtual_seconds"]
    place = f"in its {flight['phase']} phase " if flight["phase"] not in (None, "start") else ""
    if flight["outcome"] == "out of memory":
        return "its work needs more memory than its budget"
    if flight["outcome"] == "rejected":
        return "its update arrived and the server refused it for what it holds"
    return f"{flight['outcome']} {place}after {seconds:.3g} s"


def _offline(run: Run, record: Record, flights: Sequence[Record], clients: Sequence[int]) -> dict[int, str]:
    """Clients that were offline whenever clients were drawn in this round, with when they come back.

    The same function of the scenario that the run drew from; empty if its scenario or its trace can't be read any more.
    """
    import numpy as np

    from edgefl.devices.availability import availability_of
    from edgefl.scenario import load

    if not clients or not record["unavailable"]:
        return {}
    started, ended = record["started_virtual_seconds"], finished_at(record)
    sent = {f["dispatched_virtual_seconds"] for f in flights if f["dispatched_virtual_seconds"] >= started}
    try:
        scenario = load(run.path / "scenario.yaml")
        available = availability_of(scenario.fleet.availability, max(clients) + 1, scenario.seed)
    except (EdgeflError, OSError):
        return {}
    numbers = np.array(sorted(clients), dtype=np.int64)
    away = np.ones(len(numbers), dtype=bool)
    for at in sorted(sent) or [started]:
        away &= ~available.available(numbers, at)
    back = available.returns(numbers[away], ended)
    return {
        int(client): f"offline when clients were drawn, back at {at:,.0f} s of virtual time"
        if np.isfinite(at)
        else "offline when clients were drawn, and for good"
        for client, at in zip(numbers[away], back, strict=True)
    }


def _story(
    client: int,
    path: Sequence[Record],
    flights: Sequence[Record],
    verdicts: Mapping[int, Record],
    absent: Sequence[Record],
) -> dict[str, Any]:
    """One client's round: its verdict, its flights with their phases, its slack, and why it was absent."""
    mine = [flight for flight in flights if flight["client"] == client]
    verdict = verdicts.get(client)
    last = flights[-1]["ended_virtual_seconds"] if flights else None
    missing = next((entry for entry in absent if entry["client"] == client), None)
    if missing is None and not mine and verdict is None:
        why = "its kind took no part, or its verdict is recorded with those of others (fleets of over 10,000 clients)"
        missing = {"reason": "not recorded", "why": why}
    return {
        "client": client,
        "kind": next((each["kind"] for each in (*mine, verdict) if each), None),
        "device": next((each["device"] for each in (*mine, verdict) if each), None),
        "link": next((each["link"] for each in (*mine, verdict) if each), None),
        "eligible": None if verdict is None else verdict["eligible"],
        "verdict": None if verdict is None else verdict["reason"],
        "reason": None if missing is None else missing["reason"],
        "why": None if missing is None else missing["why"],
        "on_the_path": any(part["client"] == client for part in path),
        "flights": [
            {
                **{name: flight[name] for name in ("base_round", "outcome", "dispatched_virtual_seconds",
                                                   "ended_virtual_seconds", "virtual_seconds", "energy_joules")},
                "phases": {span.name: span.end - span.start for span in phases_of(flight)},
                "slack_seconds": None if last is None else last - flight["ended_virtual_seconds"],
            }
            for flight in mine
        ],
    }  # fmt: skip


EPSILON = 1e-9
"""Shortest part of the path, as a share of the round; what is shorter comes from rounding."""


def critical_path(record: Record, flights: Sequence[Record], window: float | None) -> list[dict[str, Any]]:
    """The parts of the round's critical path in order, without gaps; their seconds add up to the round's.

    ``flights`` are those that landed in the round, by their end.  From the last landing the path goes back: through
    the phases of that flight, and where it was sent off only when another flight had landed, through that one.
    Each part has ``who``, ``client``, ``phase``, ``seconds``, ``started_virtual_seconds`` and ``share``.
    """
    started, ended = float(record["started_virtual_seconds"]), finished_at(record)
    last = flights[-1] if flights else None
    spans = server_spans(record, None if last is None else last["ended_virtual_seconds"], window)
    before = [span for span in spans if span.name.startswith("before")]
    after = spans[len(before) :]
    opened = before[-1].end if before else started
    closed = after[0].start if after else ended
    parts: list[tuple[Record | None, Span]] = []
    at = closed
    for flight in _chain(flights, opened):
        landed = min(float(flight["ended_virtual_seconds"]), at)
        parts.append((None, Span(_wait(record, window, at == closed), landed, at)))
        for phase in reversed(phases_of(flight)):
            parts.append((flight, Span(phase.name, max(phase.start, opened), min(phase.end, landed))))
        at = max(float(flight["dispatched_virtual_seconds"]), opened)
    parts.append((None, Span(_wait(record, window, not flights), opened, at)))
    path = [*((None, span) for span in before), *reversed(parts), *((None, span) for span in after)]
    length = ended - started
    return [_part(flight, span, length) for flight, span in path if span.end - span.start > EPSILON * (length or 1)]


def _chain(flights: Sequence[Record], opened: float) -> list[Record]:
    """Flights on the path, the last first: each was sent off when the next of them had landed, or after it."""
    chain, left = [], list(flights)
    while left:
        chain.append(left.pop())
        sent = float(chain[-1]["dispatched_virtual_seconds"])
        if sent <= opened:
            break
        slack = EPSILON * max(abs(sent), 1.0)
        left = [flight for flight in left if flight["ended_virtual_seconds"] <= sent + slack]
    return chain


def _wait(record: Record, window: float | None, at_the_end: bool) -> str:
    if at_the_end and window is not None:
        return "wait for the end of the window"
    if at_the_end and record["outcome"] != "completed":
        return f"wait: {record['outcome']}"
    return "wait for clients to be ready"


def _part(flight: Record | None, span: Span, length: float) -> dict[str, Any]:
    seconds = span.end - span.start
    return {
        "who": "server" if flight is None else f"client {flight['client']}",
        "client": None if flight is None else flight["client"],
        "kind": None if flight is None else flight["kind"],
        "device": None if flight is None else flight["device"],
        "link": None if flight is None else flight["link"],
        "phase": span.name,
        "started_virtual_seconds": span.start,
        "seconds": seconds,
        "share": seconds / length if length else 0.0,
    }


def what_shortens(
    record: Record, path: Sequence[Record], flights: Sequence[Record], *, alone: bool
) -> list[dict[str, Any]]:
    """Changes that would have shortened the round, each with the seconds that it would have saved, most first.

    ``alone`` says that a round waits for its whole cohort and that no flight delays another: then the saving is exact,
    since the second flight's landing bounds it.  Otherwise it is an upper bound (``at_most``).
    """
    saved: list[dict[str, Any]] = []

    def add(change: str, seconds: float, at_most: bool) -> None:
        if seconds > EPSILON * max(float(record["virtual_seconds"]), 1e-12):
            saved.append({"change": change, "seconds": seconds, "at_most": at_most})

    critical = [flight for flight in flights if any(part["client"] == flight["client"] for part in path)]
    if critical:
        last = flights[-1]
        others = [f["ended_virtual_seconds"] for f in flights if f["client"] != last["client"]]
        room = last["ended_virtual_seconds"] - max([last["dispatched_virtual_seconds"], *others]) if alone else None
        name = f"client {last['client']}"
        if room is not None and others:
            add(f"without {name}, the round would end with client {_second(flights)}'s landing", room, False)
        finished = [f["ended_virtual_seconds"] for f in flights if f["outcome"] == "finished"]
        if alone and last["outcome"] == "late" and finished:
            deadline = max(finished) - last["dispatched_virtual_seconds"]
            change = f"a deadline of {deadline:.4g} s, which loses no update"
            add(change, last["ended_virtual_seconds"] - max(finished), False)
        mine = {part["phase"]: part["seconds"] for part in path if part["client"] == last["client"]}
        for phase, words in _FASTER.items():
            seconds = mine.get(phase, 0.0) / 2
            add(words.format(**{**last, "name": name}), seconds if room is None else min(seconds, room), room is None)
        slow = float(last.get("slow_down") or 1.0)
        if slow > 1 and "compute" in mine:
            seconds = mine["compute"] * (1 - 1 / slow)
            add(f"{name} without its slow-down by {slow:g}", seconds if room is None else min(seconds, room), True)
    evaluated = sum(part["seconds"] for part in path if part["phase"].startswith("evaluate"))
    add("no evaluation in this round (evaluation.every)", evaluated, False)
    for part in path:
        if part["who"] != "server" or part["phase"].startswith("evaluate"):
            continue
        if part["phase"].startswith("wait for the end of the window"):
            add("a shorter round.window", part["seconds"], True)
        elif part["phase"].startswith("wait"):
            add("clients that are online sooner, or a shorter round.retry", part["seconds"], True)
        elif part["phase"].startswith("deliver"):
            add("no delivery of the finished stage (schedule.deliver_final)", part["seconds"], False)
        else:
            add(f"a server's device of twice the rate: {part['phase']}", part["seconds"] / 2, False)
    return sorted(saved, key=lambda each: -each["seconds"])


_FASTER = {
    "compute": "{name} computing at twice the rate ({device}), or half its epochs",
    "upload": "{name} uploading at twice the rate ({link}), or half the bytes",
    "download": "{name} downloading at twice the rate ({link}), or half the bytes",
}


def _second(flights: Sequence[Record]) -> int:
    """The client that landed last but for the very last one."""
    return int([f["client"] for f in flights if f["client"] != flights[-1]["client"]][-1])
