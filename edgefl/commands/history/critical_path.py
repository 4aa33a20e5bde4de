"""The critical path of a round: the chain of works, flights and waits that its length is the sum of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.commands.history.rounds import Span, finished_at, phases_of, server_spans

Record = Mapping[str, Any]

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
