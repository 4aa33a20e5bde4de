"""What a round's length is made of (its critical path), and what would have shortened it."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.commands.explain.answer import PathPart, Shorter
from edgefl.results.recorded_rounds import (
    PlayedFlight,
    PlayedRound,
    ServerInterval,
    phases_of,
    server_spans,
)

Who = PlayedFlight | int | None
"""Whose a part of the path is: a flight's, a relay's by its number, or the server's."""
EPSILON = 1e-9
"""Shortest part of the path, as a share of the round; what is shorter comes from rounding of a clock of 16 digits."""


def critical_path(record: PlayedRound, flights: Sequence[PlayedFlight], window: float | None) -> list[PathPart]:
    """The parts of the round's critical path in order, without gaps; their seconds add up to the round's.

    ``flights`` are those that landed in the round, by their end.  From the last landing the path goes back: through
    the phases of that flight, and where it was sent off only when another flight had landed, through that one.  With
    relays it goes through the last relay's clients, between its download and the upload of its sum.
    Each part has ``who``, ``client``, ``phase``, ``seconds``, ``started_virtual_seconds`` and ``share``.
    """
    started, ended = record.started_virtual_seconds, record.finished_virtual_seconds
    last, relay = flights[-1] if flights else None, record.last_relay
    if isinstance(relay, int):
        flights = [flight for flight in flights if flight.relay == relay]
    spans = server_spans(record, None if last is None else last.ended_virtual_seconds, window)
    before = [span for span in spans if span.name.startswith("before")]
    after = spans[len(before) :]
    opened = before[-1].end if before else started
    closed = after[0].start if after else ended
    parts: list[tuple[Who, ServerInterval]] = []
    at = closed
    for flight in _chain(flights, opened):
        landed = min(flight.ended_virtual_seconds, at)
        if isinstance(relay, int) and at == closed and record.outcome == "completed":
            parts.append((relay, ServerInterval("upload its clients' sum", landed, at)))
        else:
            parts.append((None, ServerInterval(_wait(record, window, at == closed), landed, at)))
        for phase in reversed(phases_of(flight)):
            parts.append((flight, ServerInterval(phase.name, max(phase.start, opened), min(phase.end, landed))))
        at = max(flight.dispatched_virtual_seconds, opened)
    if isinstance(relay, int):
        parts.append((relay, ServerInterval("download what its clients need", opened, at)))
    else:
        parts.append((None, ServerInterval(_wait(record, window, not flights), opened, at)))
    path: list[tuple[Who, ServerInterval]] = [
        *((None, span) for span in before),
        *reversed(parts),
        *((None, span) for span in after),
    ]
    length = ended - started
    return [_part(flight, span, length) for flight, span in path if span.end - span.start > EPSILON * (length or 1)]


def _chain(flights: Sequence[PlayedFlight], opened: float) -> list[PlayedFlight]:
    """Flights on the path, the last first: each was sent off when the next of them had landed, or after it."""
    chain: list[PlayedFlight] = []
    left = list(flights)
    while left:
        chain.append(left.pop())
        sent = chain[-1].dispatched_virtual_seconds
        if sent <= opened:
            break
        slack = EPSILON * max(abs(sent), 1.0)
        left = [flight for flight in left if flight.ended_virtual_seconds <= sent + slack]
    return chain


def _wait(record: PlayedRound, window: float | None, at_the_end: bool) -> str:
    if at_the_end and window is not None:
        return "wait for the end of the window"
    if at_the_end and record.outcome != "completed":
        return f"wait: {record.outcome}"
    return "wait for clients to be ready"


def _part(of: Who, span: ServerInterval, length: float) -> PathPart:
    seconds = span.end - span.start
    flight = of if isinstance(of, PlayedFlight) else None
    return PathPart(
        who=f"relay {of}" if isinstance(of, int) else "server" if flight is None else f"client {flight.client}",
        client=None if flight is None else flight.client,
        kind=None if flight is None else flight.kind,
        device=None if flight is None else flight.device,
        link=None if flight is None else flight.link,
        phase=span.name,
        started_virtual_seconds=span.start,
        seconds=seconds,
        share=seconds / length if length else 0.0,
    )


def what_shortens(
    record: PlayedRound, path: Sequence[PathPart], flights: Sequence[PlayedFlight], *, alone: bool
) -> list[Shorter]:
    """Changes that would have shortened the round, each with the seconds that it would have saved, most first.

    ``alone`` says that a round waits for its whole cohort and that no flight delays another: then the saving is exact,
    since the second flight's landing bounds it.  Otherwise it is an upper bound (``at_most``).
    """
    saved: list[Shorter] = []

    def add(change: str, seconds: float, at_most: bool) -> None:
        if seconds > EPSILON * max(record.virtual_seconds, 1e-12):
            saved.append(Shorter(change=change, seconds=seconds, at_most=at_most))

    critical = [flight for flight in flights if any(part.client == flight.client for part in path)]
    if critical:
        last = flights[-1]
        others = [f.ended_virtual_seconds for f in flights if f.client != last.client]
        room = last.ended_virtual_seconds - max([last.dispatched_virtual_seconds, *others]) if alone else None
        name = f"client {last.client}"
        if room is not None and others:
            second = [flight.client for flight in flights if flight.client != last.client][-1]
            add(f"without {name}, the round would end with client {second}'s landing", room, False)
        finished = [f.ended_virtual_seconds for f in flights if f.outcome == "finished"]
        if alone and last.outcome == "late" and finished:
            deadline = max(finished) - last.dispatched_virtual_seconds
            change = f"a deadline of {deadline:.4g} s, which loses no update"
            add(change, last.ended_virtual_seconds - max(finished), False)
        mine = {part.phase: part.seconds for part in path if part.client == last.client}
        for phase, words in _FASTER.items():
            seconds = mine.get(phase, 0.0) / 2
            told = words.format(name=name, device=last.device, link=last.link)
            add(told, seconds if room is None else min(seconds, room), room is None)
        slow = last.slow_down or 1.0
        if slow > 1 and "compute" in mine:
            seconds = mine["compute"] * (1 - 1 / slow)
            add(f"{name} without its slow-down by {slow:g}", seconds if room is None else min(seconds, room), True)
    evaluated = sum(part.seconds for part in path if part.phase.startswith("evaluate"))
    add("no evaluation in this round (evaluation.every)", evaluated, False)
    for part in path:
        if part.who.startswith("relay"):
            add(f"a line of twice the rate for {part.who}: {part.phase}", part.seconds / 2, True)
        if part.who != "server" or part.phase.startswith("evaluate"):
            continue
        if part.phase.startswith("wait for the end of the window"):
            add("a shorter round.window", part.seconds, True)
        elif part.phase.startswith("wait"):
            add("clients that are online sooner, or a shorter round.retry", part.seconds, True)
        elif part.phase.startswith("deliver"):
            add("no delivery of the finished stage (schedule.deliver_final)", part.seconds, False)
        else:
            add(f"a server's device of twice the rate: {part.phase}", part.seconds / 2, False)
    return sorted(saved, key=lambda each: -each.seconds)


_FASTER = {
    "compute": "{name} computing at twice the rate ({device}), or half its epochs",
    "upload": "{name} uploading at twice the rate ({link}), or half the bytes",
    "download": "{name} downloading at twice the rate ({link}), or half the bytes",
}
