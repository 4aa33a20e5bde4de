"""A round explained: who took part, why each absent client was absent, and one client's round in detail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from edgefl.commands.explain.answer import AbsentClient, Explanation, PathPart, Story, StoryFlight
from edgefl.commands.explain.critical_path import critical_path, what_shortens
from edgefl.devices.caps import CAPPED, DAY
from edgefl.errors import EdgeflError
from edgefl.records.record import UNSET, or_nan
from edgefl.results.recorded_rounds import (
    PlayedFlight,
    PlayedRound,
    PlayedVerdict,
    check_client,
    landed_flights,
    phases_of,
    policy_of,
    round_of,
    total_clients,
    window_of,
)
from edgefl.runs import Run
from edgefl.runs.changed import raise_run_errors

TOOK_PART = "finished"


@raise_run_errors
def explained_round(run: Run, number: int, client: int | None) -> Explanation:
    """The answer of ``explain`` for a round of this run, with the round of a client in detail if one is named."""
    record, flights = round_of(run, number), landed_flights(run, number)
    verdicts = _latest(run, number)
    clients = total_clients(list(verdicts.values()), run)
    if client is not None:
        check_client(run, client, clients)
    window = window_of(run)
    path = critical_path(record, flights, window)
    settings = run.settings
    policy = policy_of(run)
    alone = policy is not None and policy.waits_for_all and not settings.round.over_selection
    alone &= not (settings.fleet.server_link or settings.fleet.relays)
    under_way = _under_way(run, record)
    absent = _absent(run, record, flights, verdicts, under_way, clients)
    return Explanation(
        folder=str(run.path),
        round=number,
        stage=record.stage,
        policy=settings.round.policy_name,
        outcome=record.outcome,
        started_virtual_seconds=record.started_virtual_seconds,
        finished_virtual_seconds=record.finished_virtual_seconds,
        virtual_seconds=record.virtual_seconds,
        clients=clients,
        unavailable=record.unavailable,
        path=path,
        shorter=what_shortens(record, path, flights, alone=alone),
        took_part=sorted({flight.client for flight in flights if flight.outcome == TOOK_PART}),
        absent=absent,
        absent_by=_count_by_reason(absent),
        privacy=record.privacy,
        client=UNSET if client is None else _story(client, path, flights, verdicts, absent),
    )


def _count_by_reason(absent: Sequence[AbsentClient]) -> dict[str, int]:
    """Number of absent clients by reason, most first."""
    counts: Counter[str] = Counter()
    for entry in absent:
        counts[entry.reason] += entry.clients
    return dict(counts.most_common())


def _latest(run: Run, number: int) -> dict[int, PlayedVerdict]:
    """The verdict of each client that counted in a round: the latest one up to it."""
    verdicts: dict[int, PlayedVerdict] = {}
    for verdict in run.read(PlayedVerdict):
        if verdict.round <= number:
            verdicts[verdict.client] = verdict
    return verdicts


def _under_way(run: Run, record: PlayedRound) -> dict[int, PlayedFlight]:
    """Flights that were sent off before the round's end and landed in a later round, or haven't landed yet."""
    if not record.under_way:
        return {}
    number = record.round
    return {f.client: f for f in run.read(PlayedFlight) if f.base_round <= number < f.round}


def _absent(
    run: Run,
    record: PlayedRound,
    flights: Sequence[PlayedFlight],
    verdicts: Mapping[int, PlayedVerdict],
    under_way: Mapping[int, PlayedFlight],
    count: int,
) -> list[AbsentClient]:
    """An entry for each of ``count`` clients (of over 10,000 for all alike) without an update in this round."""
    number = record.round
    entries: list[AbsentClient] = []
    finished = {flight.client for flight in flights if flight.outcome == TOOK_PART}
    ended = {flight.client: flight for flight in flights}
    for client, flight in sorted(ended.items()):
        if client not in finished:
            entries.append(_entry(flight, flight.outcome, _how_it_ended(flight)))
    for client, flight in sorted(under_way.items()):
        if client not in ended:
            why = f"sent off in round {flight.base_round}, lands in round {flight.round}"
            entries.append(_entry(flight, "under way", why))
    known = {*ended, *under_way}
    if any(verdict.clients > 1 for verdict in verdicts.values()):
        return [*entries, *_by_kind(record, [*ended.values(), *(under_way[c] for c in under_way.keys() - ended)])]
    unready = _unready(run, record, flights, verdicts, count)
    settings = run.settings
    battery, left_out = bool(settings.fleet.battery), settings.round.leave_out or ()
    for client, verdict in sorted(verdicts.items()):
        if client in known:
            continue
        kind = verdict.kind
        if kind in left_out:
            reason, why = "left out", f"round.leave_out has {kind} clients"
        elif kind not in record.clients:
            reason, why = "no part", f"the method has no work for {kind} clients in round {number}"
        elif not verdict.eligible and settings.round.gate == "eligible":
            reason, why = f"over budget: {verdict.binding}", verdict.reason
        elif client in unready:
            reason, why = unready[client]
        else:
            reason = "not drawn"
            why = f"{record.selected} clients were drawn of {sum(record.eligible.values())} eligible ones"
            if record.unavailable and battery:
                reason, why = "not drawn or not ready", f"{why}, or its battery was below its reserve"
        entries.append(_entry(verdict, reason, why))
    for kind in left_out:
        entries += _clients_without_verdict(run, kind, verdicts, f"round.leave_out has {kind} clients", "left out")
    for kind in settings.data.clients or {}:
        if kind not in record.clients and kind not in left_out:
            why = f"the method has no work for {kind} clients in round {number}"
            entries += _clients_without_verdict(run, kind, verdicts, why, "no part")
    return entries


def _by_kind(record: PlayedRound, flown: Sequence[PlayedFlight]) -> list[AbsentClient]:
    """Entries for a fleet whose clients share verdicts: clients of each kind over a budget, and not drawn."""
    entries = []
    for kind, clients in record.clients.items():
        eligible = record.eligible.get(kind, 0)
        left = {
            "over budget": (clients - eligible, f"of {clients:,}; eligibility.jsonl has the budgets"),
            "not drawn or not ready": (
                eligible - sum(flight.kind == kind for flight in flown),
                f"{record.selected:,} clients were drawn of {sum(record.eligible.values()):,} eligible ones",
            ),
        }
        for reason, (many, why) in left.items():
            if many > 0:
                entries.append(_all_of(kind, many, reason, why))
    return entries


def _clients_without_verdict(
    run: Run, kind: str, verdicts: Mapping[int, PlayedVerdict], why: str, reason: str
) -> list[AbsentClient]:
    """One entry for the clients of a kind that was never judged, and has no records therefore."""
    asked = (run.settings.data.clients or {}).get(kind, 0)
    left = asked - sum(v.clients for v in verdicts.values() if v.kind == kind)
    return [_all_of(kind, left, reason, why)] if left > 0 else []


def _all_of(kind: str, clients: int, reason: str, why: str) -> AbsentClient:
    """An entry for several clients of a kind, of which nothing is known by itself."""
    return AbsentClient(client=None, clients=clients, kind=kind, device=None, link=None, reason=reason, why=why)


def _entry(record: PlayedFlight | PlayedVerdict, reason: str, why: str) -> AbsentClient:
    return AbsentClient(
        client=record.client, kind=record.kind, device=record.device, link=record.link, reason=reason, why=why
    )


def _how_it_ended(flight: PlayedFlight) -> str:
    seconds = flight.virtual_seconds
    place = f"in its {flight.phase} phase " if flight.phase not in (None, "start") else ""
    if flight.outcome == "out of memory":
        return "its work needs more memory than its budget"
    if flight.outcome == "rejected":
        return "its update arrived and the server refused it for what it holds"
    return f"{flight.outcome} {place}after {seconds:.3g} s"


def _unready(
    run: Run, record: PlayedRound, flights: Sequence[PlayedFlight], verdicts: Mapping[int, PlayedVerdict], count: int
) -> dict[int, tuple[str, str]]:
    """Clients of a fleet of ``count`` that were offline whenever clients were drawn in this round, or whose cap of the
    day was spent, with the reason and when they come back.

    The same functions of the scenario that the run drew from; empty if its scenario or a trace can't be read any more.
    """
    if not verdicts or not record.unavailable:
        return {}
    import numpy as np

    from edgefl.devices import Fleet
    from edgefl.scenario import load

    started, ended = record.started_virtual_seconds, record.finished_virtual_seconds
    sent = {f.dispatched_virtual_seconds for f in flights if f.dispatched_virtual_seconds >= started}
    try:
        scenario = load(run.path / "scenario.yaml")
        fleet = Fleet.draw(scenario.fleet, count, scenario.seed)
    except (EdgeflError, OSError):
        return {}
    numbers, drawn = np.array(sorted(verdicts), dtype=np.int64), sorted(sent) or [started]
    away = np.ones(len(numbers), dtype=bool)
    for at in drawn:
        away &= ~fleet.availability.available(numbers, at)
    back = fleet.availability.returns(numbers[away], ended)
    found = {
        int(client): ("offline", f"offline when clients were drawn, back at {at:,.0f} s of virtual time")
        if np.isfinite(at)
        else ("offline", "offline when clients were drawn, and for good")
        for client, at in zip(numbers[away], back, strict=True)
    }
    if fleet.caps is not None and fleet.caps.names(DAY):
        spent = fleet.caps.nothing_spent()
        for flight in run.read(PlayedFlight):
            if flight.ended_virtual_seconds <= drawn[-1]:
                moved = flight.carried_download_bytes + flight.carried_upload_bytes
                took = {"bytes": np.array([moved]), "joules": np.array([or_nan(flight.energy_joules)])}
                fleet.caps.spend(spent, np.array([flight.client]), took, np.array([flight.ended_virtual_seconds]))
        costs = {name: np.array([verdicts[c].costs[name] for c in numbers.tolist()]) for name in CAPPED}
        for client in numbers[~fleet.caps.ready(spent, numbers, costs, drawn[-1]) & ~away].tolist():
            at = fleet.caps.midnight(drawn[-1])
            found[client] = "cap of the day", f"its next round takes more than is left, back at {at:,.0f} s"
    return found


def _story(
    client: int,
    path: Sequence[PathPart],
    flights: Sequence[PlayedFlight],
    verdicts: Mapping[int, PlayedVerdict],
    absent: Sequence[AbsentClient],
) -> Story:
    """One client's round: its verdict, its flights with their phases, its slack, and why it was absent."""
    mine = [flight for flight in flights if flight.client == client]
    verdict = verdicts.get(client)
    last = flights[-1].ended_virtual_seconds if flights else None
    missing = next((entry for entry in absent if entry.client == client), None)
    reason, why = (None, None) if missing is None else (missing.reason, missing.why)
    if missing is None and not mine and verdict is None:
        reason = "not recorded"
        why = "its kind took no part, or its verdict is recorded with those of others (fleets of over 10,000 clients)"
    known: PlayedFlight | PlayedVerdict | None = mine[0] if mine else verdict
    return Story(
        client=client,
        kind=None if known is None else known.kind,
        device=None if known is None else known.device,
        link=None if known is None else known.link,
        eligible=None if verdict is None else verdict.eligible,
        verdict=None if verdict is None else verdict.reason,
        reason=reason,
        why=why,
        on_the_path=any(part.client == client for part in path),
        flights=[
            StoryFlight(
                base_round=flight.base_round,
                outcome=flight.outcome,
                dispatched_virtual_seconds=flight.dispatched_virtual_seconds,
                ended_virtual_seconds=flight.ended_virtual_seconds,
                virtual_seconds=flight.virtual_seconds,
                energy_joules=flight.energy_joules,
                phases={span.name: span.end - span.start for span in phases_of(flight)},
                slack_seconds=None if last is None else last - flight.ended_virtual_seconds,
            )
            for flight in mine
        ],
    )
