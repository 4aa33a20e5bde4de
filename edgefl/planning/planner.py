"""Works and costs of clients, planned once for all clients of equal group, device, link and stale copies.

Those share one ``Plan``, and caches of records and of traffic know it by its identity: an equal copy would miss them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from edgefl.cost.client_cost import NO_COMPUTE, ComputeCost, ExchangeCost, Traffic, compute_cost, exchange_cost, traffic
from edgefl.cost.phases import Phases, numbers_of
from edgefl.cost.predict import Predictor, passes_key, work_key
from edgefl.cost.price import price_rounds
from edgefl.cost.secure import values_of
from edgefl.cost.traced_ahead import PriceRequest, ShapeSource
from edgefl.devices import Device, Link, available_memory_bytes
from edgefl.devices.budgets import amounts
from edgefl.errors import MethodError
from edgefl.planning.payload_options import with_codecs
from edgefl.planning.setup import Setup
from edgefl.planning.versions import activations_address, travelling
from edgefl.records.record import UNSET, Maybe
from edgefl.schedules import KEEP, Stage
from edgefl.units import show_bytes
from edgefl.work import Address, Description, Form, Payload, Scalars, Source, Work, digest, intern_form
from edgefl.work.description import Scalar
from edgefl.work.halves import ArrivingBatches, halves
from edgefl.work.optimizer.learning_rates import at_stage

if TYPE_CHECKING:
    from edgefl.records.clients import ExchangeRecord

Start = tuple[str, Hashable, int, tuple[str, ...]]
"""Kind, variant, stage index and stale copies of a client, which decide the values that it starts a round from."""

WorkKey = tuple[str, Hashable, int]
"""Kind, variant and stage index: what decides the form of a work in a round."""


@dataclass(frozen=True)
class Demand:
    """Device-independent demand of a client's round (``Planner.demand``).

    ``form`` is fitted to the client's samples, ``key`` is its cost key, and ``down`` has the downloaded payloads.
    """

    form: Form
    key: str
    compute: ComputeCost
    down: tuple[Payload, ...]
    traffic: Traffic


@dataclass(frozen=True, kw_only=True)
class PlacedDemand(Demand):
    """A demand of clients of one kind, variant, device and link with the same stale copies (``old``)."""

    kind: str
    variant: Hashable
    samples: int
    stage: Stage
    old: tuple[str, ...]
    device: Device
    link: Link


@dataclass(frozen=True, kw_only=True)
class Plan(PlacedDemand):
    """Form of a client's work in a round, to which ``Planner.scalars`` are bound, and its price without jitter.

    All clients of one group, device and link with the same stale copies share a plan.  ``amounts`` are what the round
    takes of the fleet's budgets, by name.
    """

    group: int
    amounts: Mapping[str, float]
    peak_watts: float

    @cached_property
    def sums(self) -> tuple[int, ...]:
        """The numbers named by ``PLANNED``, in that order."""
        t, c = self.traffic, self.compute
        moved = t.download_bytes, t.upload_bytes, t.serialised_download_bytes, t.serialised_upload_bytes
        return (*moved, c.forward_flops, c.backward_flops)

    @cached_property
    def flops(self) -> int:
        """FLOPs of the whole work."""
        return self.compute.forward_flops + self.compute.backward_flops

    @cached_property
    def loading_share(self) -> float:
        """Share of the time of loading and computing in which the model is loaded, before any FLOP."""
        cool, _ = self.compute.cool(self.device)
        whole = cool + self.exchange_seconds
        return self.compute.load_seconds(self.device) / whole if whole else 1.0

    @cached_property
    def exchange_seconds(self) -> float:
        """Seconds of exchanges with the server's half of the model, without jitter."""
        numbers = numbers_of(0, 0, 0.0, self.device, self.link, exchanges=[self.compute.exchange])
        return float(sum(Phases(numbers).exchange_seconds))

    def executed_flops(self, seconds: float, whole: float, *, throttling: bool) -> int:
        """FLOPs after ``seconds`` of loading and computing, all of which takes ``whole`` seconds."""
        if (
            throttling and not self.exchange_seconds
        ):  # what the times would be without it: the inverse of ``throttled_seconds``
            after, share = self.device.throttle_after_seconds, self.device.throttled_share
            seconds, whole = (min(t, after) + max(t - after, 0.0) * share for t in (seconds, whole))
        loaded = whole * self.loading_share
        return int(self.flops * min(max((seconds - loaded) / (whole - loaded), 0.0), 1.0)) if whole > loaded else 0

    @property
    def start(self) -> Start:
        """Key of the starting values: equal for clients that start the round from equal values."""
        return self.kind, self.variant, self.stage.index, self.old


def exchange_record(exchange: ExchangeCost | None) -> ExchangeRecord | Maybe:
    """What a client exchanges, as it is written; absent where nothing is."""
    if exchange is None:
        return UNSET
    from edgefl.records.clients import ExchangeRecord  # whose module imports slowly, and few works exchange

    return ExchangeRecord(
        trips=exchange.trips,
        serialised_download_bytes=exchange.serialised_download_bytes,
        serialised_upload_bytes=exchange.serialised_upload_bytes,
        server_seconds=exchange.server_seconds,
        server_peak_memory_bytes=exchange.server.peak_memory_bytes,
        server_flops=exchange.server.forward_flops + exchange.server.backward_flops,
    )


class PlanCell(NamedTuple):
    """Clients that share a plan at a stage: their group, device and link (by index) and stale copies."""

    group: int
    device: int
    link: int
    old: tuple[str, ...]


class _Moved(NamedTuple):
    """Payloads of a work, those that travel down where some copies are stale, and the traffic."""

    down: tuple[Payload, ...]
    up: tuple[Payload, ...]
    travelling: tuple[Payload, ...]
    traffic: Traffic


class Planner:
    """Cache of works and costs of clients: each is computed once for all clients that share it."""

    def __init__(self, setup: Setup, predictor: Predictor):
        self.setup, self.predictor = setup, predictor
        self._full: dict[tuple[str, Hashable], Work] = {}
        self._round = 0
        """That of the works in ``_full``."""
        self._passes: dict[tuple[int, str], str] = {}
        self._compute: dict[tuple[str, int, tuple[int, ...], str | None], ComputeCost] = {}
        self._stages: dict[WorkKey, tuple[Form, Form, str]] = {}
        self._fitted: dict[WorkKey, dict[tuple[int, ...], Form]] = {}
        self.revisions: Counter[WorkKey] = Counter()
        """Number of changes of a variant's work at a stage; changes of a learning rate don't count."""
        self._traffic: dict[tuple[str, int, str, tuple[str, ...]], _Moved] = {}
        self._plans: dict[WorkKey, dict[PlanCell, Plan]] = {}
        self._server: list[tuple[Form, tuple[str, ComputeCost]]] = []

    def work(self, kind: str, round: int, stage: Stage, variant: Hashable = None) -> tuple[Work, str]:
        """The method's work restricted to a stage, and the part of its cost key that doesn't depend on data."""
        form, base = self.form(kind, round, stage, variant)
        return form.bind(self.scalars(kind, round, stage, variant)), base

    def form(self, kind: str, round: int, stage: Stage, variant: Hashable = None) -> tuple[Form, str]:
        """The form of ``work``, one object as long as it doesn't change, and the same part of the cost key."""
        full, at = self._work(kind, round, variant), (kind, variant, stage.index)
        known = self._stages.get(at)
        if known is not None and known[0] is full.form:  # asked for each client
            return known[1:]
        if known is not None and known[0] == full.form:
            known = self._stages[at] = full.form, *known[1:]
        else:
            # applied last: method, schedule and predictor see decoded payloads only
            form = with_codecs(stage.restrict_work(full).form, self.setup.payload, self.buffers, self.setup.method)
            known = self._stages[at] = full.form, intern_form(form), work_key(form)
            self.revisions[at] += 1
            # works of equal cost may send different payloads in another round or to another kind
            self._traffic = {k: v for k, v in self._traffic.items() if k[:2] != (kind, stage.index)}
            self._plans[at], self._fitted[at] = {}, {}
        return known[1:]

    def scalars(self, kind: str, round: int, stage: Stage, variant: Hashable = None) -> Scalars:
        """The scalars of ``work``."""
        return Scalars(at_stage(self._work(kind, round, variant).scalars, stage.index))

    def _work(self, kind: str, round: int, variant: Hashable) -> Work:
        """The method's work for the whole model."""
        if round != self._round:
            self._full, self._round = {}, round
        if (kind, variant) not in self._full:
            self._full[kind, variant] = self.setup.method.client_work(kind, round, variant)
        return self._full[kind, variant]

    def compute(
        self, form: Form, scalars: Mapping[str, Scalar], base: str, client: int, *, again: bool = False
    ) -> tuple[Form, str, ComputeCost]:
        """A form fitted to a client's samples, its cost key and its device-independent cost.

        ``base`` is the part of the key that ``self.form(...)`` gives; only a prediction reads the ``scalars``.
        ``again`` says that the client has kept the activations that the work would compute.
        """
        source = self.setup.clients.client(client)
        fitted = form.limit_batches(source.size)
        if fitted.split:
            return fitted, *self._split_cost(fitted, scalars, source, base, client)
        key, computed = self._key_and_cost(fitted, scalars, source, base, client, KEEP if again else None)
        if (secure := self.setup.secure_sum(form.kind)) is not None:
            values = sum(values_of(item.shape) for payload in form.up for item in payload.items)
            computed = secure.mask(computed, values)
        return fitted, key, computed

    def _split_cost(
        self, form: Form, scalars: Mapping[str, Scalar], source: Source, base: str, client: int
    ) -> tuple[str, ComputeCost]:
        """The cost key of a split work, and the cost of the client's half with what it exchanges."""
        (first, last), arriving = halves(form.bind(scalars)), ArrivingBatches(source)
        keys = [_half_base(base, form, half) for half in ("first", "last")]
        key, computed = self._key_and_cost(first.form, scalars, source, keys[0], client)
        _, server = self._key_and_cost(last.form, scalars, arriving, keys[1], client)
        cost_key = (key, len(form.passes), tuple(n for p in form.passes for n in source.counts(p).values()), "split")
        if cost_key not in self._compute:
            exchange = exchange_cost(form, source, server, self.setup.fleet.server)
            self._check_server(server, 1 if form.in_turn else sum(self.setup.seats(1).values()))
            self._compute[cost_key] = replace(computed, exchange=exchange)
        return key, self._compute[cost_key]

    def _check_server(self, half: ComputeCost, halves: int) -> None:
        """Raise MethodError if the server's device can't hold so many halves, of which one is computed at a time."""
        device = self.setup.fleet.server
        kept = sum(half.memory_bytes.get(part, 0) for part in ("parameters", "buffers", "optimizer"))
        needs, has = half.tensor_bytes + (halves - 1) * kept, available_memory_bytes(device)
        if needs > has:
            fits = (has - half.tensor_bytes) // max(kept, 1) + 1
            cohort = f"round.cohort: {fits} or less, schedule.server: shared, " if halves > 1 and fits > 0 else ""
            raise MethodError(
                f"fleet.server: {device.name} has {show_bytes(has)} for tensors, and {halves} of the server's halves "
                f"need {show_bytes(needs)}: write {cohort}a larger schedule.after, or another device"
            )

    def _key_and_cost(
        self,
        form: Form,
        scalars: Mapping[str, Scalar],
        source: Source,
        base: str,
        client: int,
        without: str | None = None,
    ) -> tuple[str, ComputeCost]:
        key = self._key(form, source, base, client)
        counts = tuple(n for p in form.passes for n in source.counts(p).values())
        cost_key = (key, len(form.passes), counts, without)
        if cost_key not in self._compute:
            trace = self.predictor.trace(form.bind(scalars), source, key)
            self._compute[cost_key] = compute_cost(form, source, trace, without)
        return key, self._compute[cost_key]

    def price_request(self, work: Work, base: str, client: int) -> PriceRequest:
        """What another process needs to price ``self.work(...)`` for a client."""
        source = self.setup.clients.client(client)
        fitted = work.limit_batches(source.size)
        if fitted.split:  # the server's half, which is most of it
            fitted, source, base = halves(fitted)[1], ArrivingBatches(source), _half_base(base, fitted, "last")
        key = self._key(fitted.form, source, base, client)
        return PriceRequest(self.predictor.device, key, fitted, ShapeSource.from_work(fitted, source))

    def _key(self, form: Form, source: Source, base: str, client: int) -> str:
        passes = (client, repr(form.passes))
        if passes not in self._passes:
            self._passes[passes] = passes_key(form, source)
        return digest([base, self._passes[passes], self.predictor.device])

    def downloads_and_traffic(
        self, work: Description, base: str, stage: Stage, old: tuple[str, ...], client: int | None = None
    ) -> tuple[tuple[Payload, ...], Traffic]:
        """Downloaded payloads of ``self.work(...)``, and traffic in both directions; ``old`` are the stale copies.

        With a ``client`` the traffic of a split work, or of a secure sum, has what this client exchanges.
        """
        key, secure = (work.kind, stage.index, base, old), self.setup.secure_sum(work.kind)
        entry = self._traffic.get(key)
        # works of equal computation may send different payloads, for example in other rounds
        if entry is None or (entry.down, entry.up) != (work.down, work.up):
            down, up = travelling(work, stage, old), tuple(p for p in work.up if p.items and p.travels)
            moved = traffic(down, up, self.buffers)
            if secure is not None:
                moved = secure.pack(moved, up, self.buffers)
            entry = self._traffic[key] = _Moved(work.down, work.up, down, moved)
        if client is None or not (work.split or secure):
            return entry.travelling, entry.traffic
        if secure is not None:
            return entry.travelling, entry.traffic.with_exchange(secure.exchange)
        source = self.setup.clients.client(client)
        exchange = exchange_cost(work.limit_batches(source.size), source, NO_COMPUTE, self.setup.fleet.server)
        return entry.travelling, entry.traffic.with_exchange(exchange)

    def demand(self, client: int, round: int, stage: Stage, old: tuple[str, ...] = ()) -> Demand:
        """Device-independent demand of a client's round at this stage; ``old`` are its stale copies."""
        at = self.setup.kind_of(client), round, stage, self.setup.variant_of(client)
        form, base = self.form(*at)
        once = activations_address(form)
        again = once is not None and once not in old
        fitted, key, computed = self.compute(form, self.scalars(*at), base, client, again=again)
        down, moved = self.downloads_and_traffic(form, base, stage, old, client)
        return Demand(fitted, key, computed, down, moved)

    @property
    def buffers(self) -> frozenset[Address]:
        """Addresses of the buffers of all client models."""
        return self.setup.method.setting.buffers

    def plan(self, group: int, device: int, link: int, round: int, stage: Stage, old: tuple[str, ...]) -> Plan:
        """Plan of a round at this stage for clients of a group, on a device and link of the fleet (by index).

        ``old`` are their stale copies (``stale``).
        """
        return self.plans([PlanCell(group, device, link, old)], round, stage)[0]

    def plans(self, cells: Sequence[PlanCell], round: int, stage: Stage) -> list[Plan]:
        """The plans of a round at this stage for these cells; those that aren't known are priced together."""
        setup, fleet, found = self.setup, self.setup.fleet, list[tuple[WorkKey, PlanCell]]()
        new: dict[tuple[int, int], dict[PlanCell, tuple[WorkKey, int, Demand]]] = {}
        for cell in cells:
            client = int(setup.representative[cell.group])
            at = setup.kind_of(client), setup.variant_of(client), stage.index
            self.form(at[0], round, stage, at[1])  # drops the plans of a work that has changed
            found.append((at, cell))
            if cell not in self._plans[at]:
                demand = self.demand(client, round, stage, cell.old)
                new.setdefault((cell.device, cell.link), {})[cell] = at, client, demand
        for (device, link), demands in new.items():
            hardware, connection = fleet.devices[device], fleet.links[link]
            costs = [(demand.compute, demand.traffic) for *_, demand in demands.values()]
            price = price_rounds(costs, hardware, connection, throttling=fleet.throttling)
            taken = {name: values.tolist() for name, values in amounts(fleet.budget_names, price).items()}
            for row, (cell, (at, client, demand)) in enumerate(demands.items()):
                # works that are fitted to other numbers of samples differ in their batches only
                batches = tuple(p.batch for p in demand.form.passes)
                form = self._fitted[at].setdefault(batches, demand.form)
                if form is demand.form:
                    form = self._fitted[at][batches] = intern_form(form)
                self._plans[at][cell] = Plan(
                    form, demand.key, demand.compute, demand.down, demand.traffic, kind=at[0], variant=at[1],
                    samples=int(setup.clients.client_samples[client]), stage=stage, old=cell.old, device=hardware,
                    link=connection, group=cell.group, amounts={name: taken[name][row] for name in taken},
                    peak_watts=price.peak_watts[row].item(),
                )  # fmt: skip
        return [self._plans[at][cell] for at, cell in found]

    def server(self, work: Work) -> tuple[str, ComputeCost]:
        """Cost key and cost of a work of the server."""
        for known, cost in self._server:
            if known == work.form:
                return cost
        cost = self._key_and_cost(work.form, work.scalars, self.setup.clients.server(), work_key(work.form), -1)
        self._server = [*self._server[-31:], (work.form, cost)]
        return cost


def _half_base(base: str, work: Description, half: str) -> str:
    """The part of the cost key of a half of a split work that doesn't depend on data."""
    return digest([base, half, dict(work.split)])
