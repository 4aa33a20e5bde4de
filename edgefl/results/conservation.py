"""Rules of conservation on the records of any run: bytes, seconds, joules and clients add up.

The rules don't depend on the simulation.  They take the powers of the devices and links, the deadline and the rates of
the server's line, and read one record after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, fsum, inf, isclose, sqrt
from typing import Annotated, cast

from edgefl.records.carbon import CarbonGrams
from edgefl.records.clients import Assigned, ExchangedRecord, ExchangeRecord, FlightCourse, FlightRecord, ScoredClient
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.metrics import Metrics
from edgefl.records.record import UNSET, ByKind, Clients, Keys, Maybe, Record, Share, or_nan, part_of, types_of
from edgefl.records.relays import LastRelay, RelaySums
from edgefl.records.rounds import SUMMED, ClientMetrics, EarlyStop, FlightSums, Round, RoundCourse, RoundSums
from edgefl.records.run import FinalSummary
from edgefl.records.verified import BrokenRule, CheckedRule

Values = Mapping[str, object]
"""The values of a record that break a rule, by name."""


@part_of(FlightRecord)
class CheckedFlight(FlightCourse, Assigned, FlightSums):
    """What the rules read of a flight."""

    loss: float | None
    exchange: ExchangeRecord | Maybe = UNSET
    exchanged: ExchangedRecord | Maybe = UNSET


@part_of(Round)
class CheckedRound(LastRelay, RoundCourse, RoundSums):
    """What the rules read of a round."""

    round: int
    started_virtual_seconds: float
    virtual_seconds: float
    final_delivery_bytes: int
    losses: ByKind[float | None]
    metrics: Metrics
    stopped: EarlyStop | Maybe | None = UNSET
    diverged: bool
    client_metrics: Sequence[ClientMetrics] | Maybe = UNSET


@part_of(VerdictRecord)
class CheckedVerdict(Record):
    """What the rules read of a verdict."""

    round: int
    client: int
    clients: Clients
    device: str
    eligible: bool
    memory_limit: str | None
    margins: Annotated[Mapping[str, float | None], Keys("BUDGET")]
    costs: Annotated[Mapping[str, float], Keys("BUDGET")]


@part_of(ScoredClient)
class CheckedScore(Record):
    """What the rules read of a client's evaluation."""

    round: int
    client: int
    kind: str
    device: str
    eligible: bool
    samples: int
    download_bytes: int
    serialised_download_bytes: int
    forward_flops: int
    energy_joules: float
    metrics: Annotated[Mapping[str, Share | None], Keys("METRIC")] | Maybe = UNSET


Three = tuple[float, float, float]
Watts = Callable[[str, str], tuple[Three, Three] | None]
"""The least and the most watts while downloading, computing and uploading, by device and link; None for names that the
scenario lacks.  How long a GPU waits for its kernels isn't in the records."""

CLOSE = 1e-9
"""Relative difference of equal sums that were added up in another order.

A float has 16 digits, so that a sum of a million terms, each rounded once, is off by 1e-10 of their size at most.
"""
DIRECTIONS = ("download", "upload")
PHASES = ("start", "download", "compute", "upload", None)
SECONDS = ("download_seconds", "compute_seconds", "upload_seconds")
REAL_SECONDS = ("start_up_seconds", "metering_seconds")
"""Those that only real devices have."""
ARRIVED = ("finished", "rejected")
"""Outcomes of flights whose update arrived intact."""
COUNTED = ("selected", "unavailable", "finished", "late", "failed")

RULES = {
    "bytes": "0 <= lost <= carried <= serialised bytes, each way",
    "delivered": "carried minus lost bytes are all or none; a finished or rejected flight delivered all",
    "exchanges": "the halves of a split model exchanged as often and as many bytes as was planned",
    "phases": "nothing happens after the phase in which a flight ended, its FLOPs were executed if that is the upload, "
    "and the phases add up",
    "clock": "a flight ends when its seconds have passed, within its rounds",
    "one flight": "no client is in two flights at once",
    "deadline": "no flight is longer than the deadline",
    "energy": "joules are power times time, by the profiles of device and link",
    "verdicts": "a client is eligible if and only if it keeps every budget",
    "memory": "a memory budget is the owner's or the device's, and never more than the device has",
    "refused": "no client took part that the gate had refused",
    "rounds": "rounds follow each other without a gap",
    "counts": "outcomes count the clients' records; every flight has landed or is under way",
    "round sums": "a round's bytes, FLOPs and joules are its clients' and a stage's last delivery",
    "server link": "the server's line carried no more than its rate times the time",
    "server time": "the server computed its halves of a split model for no longer than time passed",
    "relays": "relays download at least the largest of their clients' downloads and at most all of them; one that is "
    "lost loses every update of its clients; the last sum arrives after the last client",
    "totals": "the result's totals are the sums of its rounds",
    "rejected": "a round names the clients whose updates were rejected, and counts them by reason",
    "scored": "a round's groups sum up the evaluations on its clients' own samples",
    "diverged": "a round with a metric that isn't finite, or with no finite loss of a kind, is marked as diverged",
}


@dataclass
class RuleCheck:
    """A rule on one run: the number of checked records, the number that break it, and the first of these."""

    name: str
    says: str
    records: int = 0
    broken: int = 0
    first: BrokenRule | None = None
    note: str | None = None

    def count(self, offence: Values | None, where: str) -> None:
        """Count a record; ``offence`` has the values that break the rule, None if none do."""
        self.records += 1
        if offence is not None:
            self.broken += 1
            if self.first is None:
                self.first = BrokenRule(where=where, values=dict(offence))

    def checked_rule(self) -> CheckedRule:
        """The rule and what was found."""
        return CheckedRule(**vars(self))


@dataclass(frozen=True)
class LedgerFacts:
    """The facts of a run that the rules need beside its records."""

    watts: Watts
    deadline: float = inf
    gated: bool = True
    anew: bool = False
    """Whether clients are judged again within a round, as its model changes or as they have spent joules."""
    line: tuple[float, float] = (inf, inf)
    """Rates of the server's line in bit/s, down to the clients and up from them."""
    available: Mapping[str, float] | None = None
    """Bytes that each device can give to tensors, by name; None if budgets ignore it."""
    relays: int = 0
    """Relays of the fleet; 0 without."""
    rounds: int | None = None
    """Rounds of the schedule, all of which a run plays unless a metric ends it early; None if they aren't known."""


def is_close(a: float, b: float, scale: float = 0.0) -> bool:
    """Whether two figures are equal but for the order of sums; ``scale``: the size of the terms of a difference."""
    return isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE * abs(scale))


# --- one client's record ---------------------------------------------------------------------------------------------


def _values(record: Record, *names: str) -> dict[str, object]:
    return {name: getattr(record, name) for name in names}


def _bytes(record: CheckedFlight) -> Values | None:
    for direction in DIRECTIONS:
        names = (f"lost_{direction}_bytes", f"carried_{direction}_bytes", f"serialised_{direction}_bytes")
        if not 0 <= getattr(record, names[0]) <= getattr(record, names[1]) <= getattr(record, names[2]):
            return _values(record, *names)
    return None


def _delivery_offence(record: CheckedFlight) -> Values | None:
    finished = record.outcome in ARRIVED
    # of an update that didn't arrive the model's download is of use, and what was exchanged isn't
    exchange = None if finished or record.exchange is UNSET else record.exchange
    for direction, arrived in zip(DIRECTIONS, (record.phase in ("compute", "upload", None), finished), strict=True):
        names = (f"carried_{direction}_bytes", f"lost_{direction}_bytes", f"serialised_{direction}_bytes")
        carried, lost, whole = (getattr(record, name) for name in names)
        whole -= 0 if exchange is None else getattr(exchange, names[2])
        if carried - lost != (whole if arrived else 0):
            return {"outcome": record.outcome, "phase": record.phase, **_values(record, *names)}
    return None


def _exchange_offence(record: CheckedFlight) -> Values | None:
    """What a client exchanged, counted by tensors, beside the records of its plan."""
    moved, plan = cast(ExchangedRecord, record.exchanged), cast(ExchangeRecord, record.exchange)
    counted = moved.trips, moved.download_bytes, moved.upload_bytes
    planned = plan.trips, plan.serialised_download_bytes, plan.serialised_upload_bytes
    return None if counted == planned else {"exchanged": counted, "planned": planned}


def _phases(record: CheckedFlight) -> Values | None:
    phase, seconds = record.phase, [getattr(record, name) for name in SECONDS]
    ends = PHASES.index(phase) if phase in PHASES else -1
    exchanges = record.exchange is not UNSET and ends == 2  # half of a split model sends while it computes
    sent = ends < 3 and not exchanges and record.carried_upload_bytes != 0
    later = any(s != 0 for s in seconds[max(ends, 0) :]) or sent
    whole = ends >= 0 and (phase is None) == (record.outcome in ARRIVED)
    flops = record.forward_flops + record.backward_flops
    whole = whole and flops * (ends > 2) <= record.executed_flops <= flops * (ends >= 2)
    real = [name for name in REAL_SECONDS if getattr(record, name) is not UNSET]
    seconds += [getattr(record, name) for name in real]
    if whole and not later and min(seconds) >= 0 and is_close(fsum(seconds), record.virtual_seconds):
        return None
    return _values(
        record, "outcome", "phase", *SECONDS, *real, "virtual_seconds", "carried_upload_bytes", "executed_flops"
    )


# --- all of a run ----------------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """Checks a run's records, round by round, and keeps the state that the rules need from one to the next."""

    facts: LedgerFacts
    checks: dict[str, RuleCheck] = field(default_factory=lambda: {n: RuleCheck(n, says) for n, says in RULES.items()})
    spans: dict[int, tuple[float, float]] = field(default_factory=dict)
    landed: dict[int, float] = field(default_factory=dict)
    verdicts: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    totals: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SUMMED})
    counted: Counter[str] = field(default_factory=Counter)
    server_seconds: list[float] = field(default_factory=list)
    now: float = 0.0
    under_way: int = 0
    grouped: bool = False
    last_diverged: bool = False
    stopped: EarlyStop | None = None
    location: str = "the first line"

    def verdict(self, record: CheckedVerdict, where: str) -> None:
        """Check a record of ``eligibility.jsonl``."""
        self.location = where
        margins = {name: inf if value is None else value for name, value in record.margins.items()}
        within_budgets = all(value >= 0 for value in margins.values())
        offence = None if within_budgets == record.eligible else {"eligible": record.eligible, **record.margins}
        self.checks["verdicts"].count(offence, where)
        self.checks["memory"].count(self._memory(record, margins["memory"]), where)
        if record.clients != 1:
            self.grouped = True  # one record for a group whose clients aren't named
            return
        known = self.verdicts.setdefault(record.client, [])
        known.append((record.round, record.eligible))

    def _memory(self, record: CheckedVerdict, margin: float) -> Values | None:
        """The offence if the memory budget isn't what the named side allows."""
        budget, limit = record.costs["memory"] + margin, record.memory_limit
        available = inf if self.facts.available is None else self.facts.available.get(record.device, inf)
        if limit == "device":
            allowed = budget == available < inf
        else:
            allowed = limit == (None if budget == inf else "owner") and budget <= available
        return None if allowed else {"memory_limit": limit, "budget": budget, "available": available}

    def round(self, record: CheckedRound, where: str, clients: Sequence[tuple[CheckedFlight, str]]) -> None:
        """Check a round's record and its clients' records."""
        self.location = where
        number, started = record.round, record.started_virtual_seconds
        ended = started + record.virtual_seconds
        follows = number == len(self.spans) + 1 and is_close(started, self.now, self.now) and ended >= started
        follows = follows and self.stopped is None
        offence = None if follows else _values(record, "round", "started_virtual_seconds", "virtual_seconds")
        self.stopped = None if record.stopped is UNSET else record.stopped
        self.checks["rounds"].count(offence and {**offence, "previous_round_ended": self.now}, where)
        self.spans[number], self.now = (started, ended), ended
        for client, client_where in clients:
            self.location = client_where
            self._client(client, client_where)
        self.location = where
        self._counts(record, where, [client for client, _ in clients])
        self._refusals(record, where, [client for client, _ in clients])
        self._sums(record, where, [client for client, _ in clients])
        self._line([client for client, _ in clients], where)
        self._server_device([client for client, _ in clients], where)
        if self.facts.relays:
            self.checks["relays"].count(self._relays(record, [client for client, _ in clients]), where)

    def _relays(self, record: CheckedRound, clients: Sequence[CheckedFlight]) -> Values | None:
        """The offence if what relays did isn't what their clients' records allow."""
        relays, failed, down, up = (getattr(record, name) for name in types_of(RelaySums))
        if UNSET in (relays, failed, down, up):
            return _values(record, "round", *types_of(RelaySums))
        # a relay's clients are sent off at one time, unless they are waited for no longer when it has what they need
        groups: dict[tuple[object, float], list[CheckedFlight]] = {}
        for client in clients:
            groups.setdefault((client.relay, client.dispatched_virtual_seconds), []).append(client)
        numbers = {client.relay for client in clients}
        lost = {key for key, group in groups.items() if any(c.outcome == "relay failed" for c in group)}
        arrived = {key for key, group in groups.items() if any(c.outcome in ARRIVED for c in group)}
        begun = [group for group in groups.values() if any(c.download_seconds > 0 for c in group)]
        least = sum(max(client.serialised_download_bytes for client in group) for group in begun)
        sends = any(client.outcome in ARRIVED and client.upload_bytes for client in clients)
        rules = {
            "relay of a client": all(isinstance(n, int) and 0 <= n < self.facts.relays for n in numbers),
            "relays": len(numbers) <= relays <= len(clients),
            "relays_failed": len(lost) <= failed <= relays and not lost & arrived,
            "relay_download_bytes": least <= down <= record.serialised_download_bytes,
            "relay_upload_bytes": (up > 0) == sends,
        }
        last, done = record.last_relay, record.last_sum_virtual_seconds
        if clients and isinstance(done, float):
            after = max(client.ended_virtual_seconds for client in clients)
            rules["last_relay"] = last in numbers and after <= done <= self.now + CLOSE * self.now
        else:
            rules["last_relay"] = not clients and last is None and done is None
        broken = [name for name, kept in rules.items() if not kept]
        names = ("round", *types_of(RelaySums), *types_of(LastRelay))
        return {"wrong": ", ".join(broken), **_values(record, *names)} if broken else None

    def _refusals(self, record: CheckedRound, where: str, clients: Sequence[CheckedFlight]) -> None:
        rejected = sorted(client.client for client in clients if client.outcome == "rejected")
        counts = sum(record.rejections.values())
        same = list(record.rejected) == rejected and counts == len(rejected)
        offence = {**_values(record, "round", "rejected", "rejections"), "by the clients": rejected}
        self.checks["rejected"].count(None if same else offence, where)
        learned = {client.kind for client in clients if client.outcome in ARRIVED and client.loss is not None}
        scores = [value for metrics in record.metrics.values() for value in metrics.values()]
        # a kind's mean is null where one of its losses isn't finite; the median of its updates may be finite then
        lost = {kind for kind, loss in record.losses.items() if loss is None} - learned
        marked = record.diverged or not (lost or None in scores)
        self.checks["diverged"].count(None if marked else _values(record, "round", "losses", "metrics"), where)
        self.last_diverged = record.diverged

    def stray(self, record: CheckedFlight | CheckedScore, where: str) -> None:
        """Count a client's record whose round has no record."""
        self.location = where
        self.checks["counts"].count(_values(record, "round", "client"), where)

    def result(self, result: FinalSummary, where: str) -> None:
        """Check the result of a finished run."""
        self.location = where
        floats = ("energy_joules", *types_of(CarbonGrams))
        sums = {name: fsum(values) if name in floats else sum(values) for name, values in self.totals.items()}
        sums |= {name: self.counted[name] for name in COUNTED}
        sums["server_seconds"] = fsum(self.server_seconds)
        for name, value in sums.items():
            found = getattr(result.totals, name)
            total = 0 if found is UNSET else or_nan(found)
            self.checks["totals"].count(None if _same(total, value) else {name: total, "sum of rounds": value}, where)
        consistent = is_close(result.virtual_seconds, self.now) and result.rounds == len(self.spans)
        seen = {**_values(result, "rounds", "virtual_seconds"), "rounds seen": len(self.spans), "ended": self.now}
        self.checks["totals"].count(None if consistent else seen, where)
        wanted = len(self.spans) if self.facts.rounds is None else self.facts.rounds
        stopped = None if result.stopped is UNSET else result.stopped
        whole = stopped == self.stopped and (stopped is not None or len(self.spans) == wanted)
        told = self.stopped and self.stopped.to_data()
        ended = {"rounds": len(self.spans), "rounds of the schedule": wanted, "stopped": told}
        if not whole:
            self.checks["rounds"].count(ended, where)

    def finish_checks(self) -> list[RuleCheck]:
        """The checks of all records, with notes on the rules that don't apply."""
        if not self.facts.gated:
            self.checks["refused"].note = "the gate refuses no client"
        elif self.grouped:
            self.checks["refused"].note = "verdicts name groups of clients"
        if self.facts.deadline == inf:
            self.checks["deadline"].note = "no deadline"
        if not self.checks["scored"].records:
            self.checks["scored"].note = "no such evaluation"
        if self.facts.line == (inf, inf):
            self.checks["server link"].note = "no limit"
        if not self.facts.relays:
            self.checks["relays"].note = "no relays"
        return list(self.checks.values())

    # a client -------------------------------------------------------------------------------------------------------

    def _client(self, record: CheckedFlight, where: str) -> None:
        checks = self.checks
        for name, rule in (("bytes", _bytes), ("delivered", _delivery_offence), ("phases", _phases)):
            self._count(checks[name], rule(record), record, where)
        if record.exchanged is not UNSET:
            self._count(checks["exchanges"], _exchange_offence(record), record, where)
        self._count(checks["clock"], self._clock(record), record, where)
        began, ended, client = record.dispatched_virtual_seconds, record.ended_virtual_seconds, record.client
        before = self.landed.get(client, -inf)
        offence: Values | None = (
            None if began >= before else {"dispatched_virtual_seconds": began, "last flight ended": before}
        )
        self._count(checks["one flight"], offence, record, where)
        self.landed[client] = max(ended, before)
        if self.facts.deadline < inf:
            in_time = record.virtual_seconds <= self.facts.deadline + CLOSE * (self.facts.deadline + ended)
            offence = None if in_time else {**_values(record, "virtual_seconds"), "deadline": self.facts.deadline}
            self._count(checks["deadline"], offence, record, where)
        watts = self.facts.watts(record.device, record.link)
        if watts is None:
            offence = {**_values(record, "device", "link"), "of the scenario": False}
        else:
            spent = [getattr(record, name) for name in SECONDS]
            least, most = (fsum(p * s for p, s in zip(powers, spent, strict=True)) for powers in watts)
            joules = or_nan(record.energy_joules)  # nobody measured a real device's
            within = joules != joules or least <= joules <= most or is_close(least, joules) or is_close(joules, most)
            offence = None if within else {**_values(record, "energy_joules"), "power times time": most}
        self._count(checks["energy"], offence, record, where)
        if self.facts.gated and (verdicts := self.verdicts.get(client)) is not None:
            self._count(checks["refused"], self._verdict_offence(verdicts, record.base_round), record, where)

    @staticmethod
    def _count(check: RuleCheck, offence: Values | None, record: CheckedFlight, where: str) -> None:
        check.count(offence and {"round": record.round, "client": record.client, **offence}, where)

    def _clock(self, record: CheckedFlight) -> Values | None:
        began, ended = record.dispatched_virtual_seconds, record.ended_virtual_seconds
        base = self.spans.get(record.base_round, (inf, -inf))
        slack = CLOSE * self.now
        dispatched = base[0] - slack <= began <= base[1] + slack and record.base_round <= record.round
        if began <= ended <= self.now + slack and dispatched and is_close(began + record.virtual_seconds, ended):
            return None
        names = ("base_round", "dispatched_virtual_seconds", "ended_virtual_seconds", "virtual_seconds")
        return {**_values(record, *names), "round ended": self.now}

    def _verdict_offence(self, verdicts: Sequence[tuple[int, bool]], dispatched: int) -> Values | None:
        """The offence if no verdict that was valid at dispatch made the client eligible."""
        valid = [eligible for round, eligible in verdicts if round <= dispatched][-1:]
        if self.facts.anew:
            valid = [eligible for round, eligible in verdicts if round < dispatched][-1:]
            valid += [eligible for round, eligible in verdicts if round == dispatched]
        return None if any(valid) else {"base_round": dispatched, "verdict": "not eligible"}

    # a round --------------------------------------------------------------------------------------------------------

    def _counts(self, record: CheckedRound, where: str, clients: Sequence[CheckedFlight]) -> None:
        outcomes = Counter(client.outcome for client in clients)
        finished, late = outcomes["finished"], outcomes["late"]
        counts: dict[str, object] = {"finished": finished, "late": late, "failed": len(clients) - finished - late}
        self.under_way += record.selected - len(clients)
        counts |= {"outcomes": dict(outcomes), "under_way": self.under_way}
        wrong = {name: getattr(record, name) for name in counts if getattr(record, name) != counts[name]}
        for part, whole in (("eligible", "clients"), ("eligible_samples", "samples")):
            few, all_of = getattr(record, part), getattr(record, whole)
            if any(not 0 <= n <= all_of[kind] for kind, n in few.items()):
                wrong[part], counts[part] = few, {"at most": all_of}
        offence = {"round": record.round, **wrong, "by the clients": {name: counts[name] for name in wrong}}
        self.checks["counts"].count(offence if wrong else None, where)
        self.under_way = record.under_way
        for name in COUNTED:
            self.counted[name] += getattr(record, name)

    def _sums(self, record: CheckedRound, where: str, clients: Sequence[CheckedFlight]) -> None:
        exact = ("energy_joules", *(name for name in types_of(CarbonGrams) if getattr(record, name) is not UNSET))
        summed = dict.fromkeys((*SUMMED, *exact))
        sums: dict[str, float] = {n: sum(getattr(client, n) for client in clients) for n in SUMMED if n not in exact}
        sums |= {name: fsum(or_nan(getattr(client, name)) for client in clients) for name in exact}
        # the delivery at a stage's end belongs to no flight; its serialised bytes are only in the round's sum
        sums["download_bytes"] += record.final_delivery_bytes
        headers = record.serialised_download_bytes - sums["serialised_download_bytes"]
        delivered = record.final_delivery_bytes
        if headers >= delivered if delivered else headers == 0:
            sums["serialised_download_bytes"] += headers
            sums["carried_download_bytes"] += headers
        wrong = {name: getattr(record, name) for name in summed if not _same(or_nan(getattr(record, name)), sums[name])}
        offence = {"round": record.round, **wrong, "sum of clients": {name: sums[name] for name in wrong}}
        self.checks["round sums"].count(offence if wrong else None, where)
        for name in (*summed, *types_of(RelaySums)):
            if (value := getattr(record, name)) is not UNSET:
                self.totals.setdefault(name, []).append(or_nan(value))
        self.server_seconds.append(record.server_seconds)

    def _line(self, clients: Sequence[CheckedFlight], where: str) -> None:
        for direction, rate in zip(DIRECTIONS, self.facts.line, strict=True):
            moved = [client for client in clients if getattr(client, f"carried_{direction}_bytes")]
            if rate == inf or not moved:
                continue
            # from the first time that one of these flights may have used the line to the last
            if direction == "download":
                began = min(c.dispatched_virtual_seconds for c in moved)
                ended = max(c.dispatched_virtual_seconds + c.download_seconds for c in moved)
            else:
                began = min(c.ended_virtual_seconds - c.upload_seconds for c in moved)
                ended = max(c.ended_virtual_seconds for c in moved)
            bits = 8 * sum(getattr(client, f"carried_{direction}_bytes") for client in moved)
            limit = rate * (ended - began)
            offence = {"round": moved[0].round, "way": direction, "bits": bits, "seconds": ended - began, "bit/s": rate}
            within_limit = bits <= limit * (1 + CLOSE) + rate * CLOSE * ended
            self.checks["server link"].count(None if within_limit else offence, where)

    def _server_device(self, clients: Sequence[CheckedFlight], where: str) -> None:
        served = [(c, c.exchange.server_seconds) for c in clients if c.exchange is not UNSET and c.outcome in ARRIVED]
        if served:
            began = min(c.dispatched_virtual_seconds + c.download_seconds for c, _ in served)
            ended = max(c.ended_virtual_seconds - c.upload_seconds for c, _ in served)
            spent, passed = fsum(seconds for _, seconds in served), ended - began
            offence = {"round": served[0][0].round, "server's seconds": spent, "seconds": passed}
            within = spent <= passed * (1 + CLOSE) + CLOSE * ended
            self.checks["server time"].count(None if within else offence, where)


def _same(a: float, b: float) -> bool:
    unknown = a != a and b != b
    return a == b if isinstance(a, int) and isinstance(b, int) else unknown or is_close(a, b)


OWN_SUMS = ("samples", "download_bytes", "serialised_download_bytes", "forward_flops", "energy_joules")


def check_scored(
    check: RuleCheck, round: int, groups: Sequence[ClientMetrics], where: str, clients: Sequence[CheckedScore]
) -> None:
    """Check every group of a round's ``client_metrics`` against the records of the clients that were scored."""
    for row in groups:
        own = [client for client in clients if _belongs(client, row.by, row.group)]
        counted = row.scored + row.too_small + row.without == row.clients
        found: dict[str, float] = {"scored": len(own)}
        found |= {name: fsum(getattr(client, name) for client in own) for name in OWN_SUMS}
        sums = {name: getattr(row, name) for name in found}
        wrong: dict[str, object] = {name: value for name, value in sums.items() if not is_close(value, found[name])}
        for name, given in row.metrics.items():
            scores = [(None if c.metrics is UNSET else c.metrics.get(name), c.samples) for c in own]
            for part, expected in _distribution(scores).items():
                value = getattr(given, part)
                if not _same_score(value, expected):
                    wrong[f"{name} {part}"] = value
        offence = {"round": round, "by": row.by, "group": row.group, **wrong}
        check.count(offence if wrong or not counted else None, where)


def _belongs(client: CheckedScore, by: str, group: str) -> bool:
    if by == "modality":
        return group in client.kind.split("-")
    if by == "eligibility":
        return client.eligible == (group == "eligible")
    return by == "all" or group == {"kind": client.kind, "device": client.device}[by]


def _distribution(scores: Sequence[tuple[float | None, int]]) -> dict[str, float | None]:
    found = [(value, samples) for value, samples in scores if value is not None]
    if not found:
        return {"clients": 0, "mean": None, "weighted_mean": None, "deviation": None, "worst_decile": None}
    values = [value for value, _ in found]
    mean, worst = fsum(values) / len(values), sorted(values)[: ceil(len(values) / 10)]
    return {
        "clients": len(values),
        "mean": mean,
        "weighted_mean": fsum(v * n for v, n in found) / sum(n for _, n in found),
        "deviation": sqrt(fsum((v - mean) ** 2 for v in values) / len(values)),
        "worst_decile": fsum(worst) / len(worst),
    }


def _same_score(given: float | None, expected: float | None) -> bool:
    if given is None or expected is None:
        return given is expected
    return is_close(given, expected, 1.0)  # scores are shares
