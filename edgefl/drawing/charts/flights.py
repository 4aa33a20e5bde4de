"""Figures of clients' time: what each did when, and how much longer the last of each round took."""

from __future__ import annotations

from statistics import median

from edgefl import units
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import INK, PHASES, QUIET, WORST
from edgefl.drawing.charts.records import Records, ShownFlight

MOST_FLIGHTS = 300
MOST_CLIENTS = 40
"""Spans and lines of a figure, which can still be told apart; of more clients, the slowest are shown."""


def who_did_what(records: Records, most: int = MOST_FLIGHTS) -> Chart | None:
    """A line of spans for each client: downloading, computing, uploading; the last of each round is marked."""
    if not records.flights:
        return None
    flights, rounds = _window(records, most)
    dropped = 0
    clients = list(dict.fromkeys(f.client for f in sorted(flights, key=lambda f: f.client)))
    if len(clients) > MOST_CLIENTS:
        slowest = sorted(flights, key=lambda f: -f.virtual_seconds)
        kept = set(list(dict.fromkeys(f.client for f in slowest))[:MOST_CLIENTS])
        dropped = len(clients) - len(kept)
        clients = [client for client in clients if client in kept]
        flights = [f for f in flights if f.client in kept]
    names = {f.client: f"{f.client} {f.kind}" for f in flights}
    order = [names[client] for client in clients]
    series = []
    begins = [f.dispatched_virtual_seconds for f in flights]
    for phase in flights[0].phase_seconds:
        spent = [f.phase_seconds[phase] for f in flights]
        series.append(
            Series(phase, spent, [names[f.client] for f in flights], PHASES[phase],
                   base=begins, notes=[_words(f) for f in flights])
        )  # fmt: skip
        begins = [sum(each) for each in zip(begins, spent, strict=True)]
    last = [f for f in _stragglers(records).values() if f.round in rounds and f.client in names]
    for name, chosen, shade, symbol in (
        ("last of its round", [f for f in last if f.outcome == "finished"], INK, 3),
        ("no update", [f for f in flights if f.outcome != "finished"], WORST, 5),
    ):
        if chosen:
            series.append(
                Series(name, [f.ended_virtual_seconds for f in chosen], [names[f.client] for f in chosen], shade,
                       symbols=[symbol] * len(chosen), notes=[_words(f) for f in chosen], form="points")
            )  # fmt: skip
    begun = [(r.started_virtual_seconds, f"round {r.round}") for r in records.rounds if r.round in rounds]
    notes = []
    if len(rounds) < len(records.rounds):
        notes.append(f"Rounds {min(rounds)} to {max(rounds)} of {len(records.rounds)} are shown, around the longest.")
    if dropped:
        notes.append(f"{dropped:,} faster clients are left out.")
    columns = ["round", "client", "kind", "device", "link", "stage", "outcome", "dispatched_virtual_seconds",
               "download_seconds", "compute_seconds", "upload_seconds", "ended_virtual_seconds"]  # fmt: skip
    return Chart(
        "timeline", "Who did what when",
        "Each client's rounds in virtual time: downloading, computing, uploading. Dotted lines begin rounds; triangles "
        "are the last client of a round, crosses flights without an update.",
        [Panel("", "spans", ChartAxis("virtual time", "seconds"), ChartAxis("", names=order), series, down=begun)],
        columns, [[getattr(f, name) for name in columns] for f in flights], notes=notes,
    )  # fmt: skip


def _window(records: Records, most: int) -> tuple[list[ShownFlight], set[int]]:
    """The flights of consecutive rounds around the longest one, at most ``most`` if a round has fewer."""
    by_round: dict[int, list[ShownFlight]] = {r.round: [] for r in records.rounds}
    for flight in records.flights:
        by_round.setdefault(flight.round, []).append(flight)
    numbers = list(by_round)
    length = {r.round: r.virtual_seconds for r in records.rounds}
    first = last = max(range(len(numbers)), key=lambda i: length.get(numbers[i], 0.0) if by_round[numbers[i]] else -1.0)
    count = len(by_round[numbers[first]])
    while True:
        grown = [
            i for i in (first - 1, last + 1) if 0 <= i < len(numbers) and count + len(by_round[numbers[i]]) <= most
        ]
        if not grown:
            break
        chosen = grown[0]
        count += len(by_round[numbers[chosen]])
        first, last = min(first, chosen), max(last, chosen)
    rounds = numbers[first : last + 1]
    return [f for number in rounds for f in by_round[number]], set(rounds)


def _stragglers(records: Records) -> dict[int, ShownFlight]:
    """The flight of each round that ended last."""
    last: dict[int, ShownFlight] = {}
    for f in records.flights:
        if f.round not in last or f.ended_virtual_seconds > last[f.round].ended_virtual_seconds:
            last[f.round] = f
    return last


def _words(f: ShownFlight) -> str:
    where = f" in {f.phase}" if f.phase else ""
    took = units.show_seconds(f.virtual_seconds)
    return f"round {f.round}, {f.device}, {f.link}, {took}: {f.outcome}{where}"


def stragglers(records: Records) -> Chart | None:
    """How long the slowest and the median client of each round took, and who it was; None of single clients."""
    by_round: dict[int, list[ShownFlight]] = {}
    for f in records.flights:
        by_round.setdefault(f.round, []).append(f)
    if all(len(flights) < 2 for flights in by_round.values()):
        return None
    numbers = sorted(by_round)
    slowest = [max(by_round[n], key=lambda f: f.virtual_seconds) for n in numbers]
    middle = [median(f.virtual_seconds for f in by_round[n]) for n in numbers]
    rows = []
    for number, slow, typical in zip(numbers, slowest, middle, strict=True):
        phase = max(slow.phase_seconds, key=slow.phase_seconds.__getitem__)
        rows.append(
            [number, len(by_round[number]), slow.client, slow.kind, slow.device, slow.link, phase,
             slow.outcome, slow.virtual_seconds, typical,
             slow.virtual_seconds / typical if typical else None]
        )  # fmt: skip
    return Chart(
        "stragglers", "Stragglers",
        "Time of the slowest client's round beside the median client's. The table names the slowest, and the phase "
        "that took most of its time.",
        [Panel("", "lines", ChartAxis("round"), ChartAxis("time of a client's round", "seconds", bottom=0.0),
               [Series("slowest", numbers, [f.virtual_seconds for f in slowest], WORST,
                       notes=[_words(f) for f in slowest]),
                Series("median", numbers, middle, QUIET, dashed=True)])],
        ["round", "flights", "slowest_client", "kind", "device", "link", "longest_phase", "outcome", "slowest_seconds",
         "median_seconds", "times_the_median"],
        rows,
    )  # fmt: skip
