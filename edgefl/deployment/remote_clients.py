"""The server of real nodes: an executor of a simulation whose clients' works are done elsewhere, and their landings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from edgefl import __version__
from edgefl.data import Federation
from edgefl.deployment.node_roster import NodeRoster
from edgefl.deployment.transport import Message, NodeReport, NoReply
from edgefl.errors import RunError
from edgefl.planning.planner import Plan
from edgefl.records.host import NodeFlight
from edgefl.records.reading import from_data
from edgefl.runs.tensor_file import TensorFile
from edgefl.simulation.closed_form import Flights, Landings
from edgefl.simulation.real_flights import land_real_flights
from edgefl.training import Assignment, Inline
from edgefl.training.assignment import deserialise, serialise
from edgefl.training.executors import Closing
from edgefl.training.refusal import why_refused
from edgefl.training.remote import RealFlight, checksum, order_of, split_inputs
from edgefl.work import Payload
from edgefl.work.update import SERVER, HostFigures, Update


@dataclass
class Parcel:
    """What clients with equal starts and downloads are sent: the payloads, and checksums of ``own``, which they hold.

    ``inputs`` and ``down`` are what it was made of, by whose identity it is found.  Of what a client ``keep``s for
    itself the inputs have the first values.
    """

    inputs: Mapping[str, Tensor]
    down: Sequence[Payload]
    bodies: tuple[bytes, ...]
    own: tuple[str, ...]
    keep: frozenset[str]
    more: dict[tuple[str, ...], bytes] = field(default_factory=dict)
    _sums: dict[str, int] = field(default_factory=dict)

    def sums(self, names: Iterable[str]) -> dict[str, int]:
        """Checksums of these items but of what clients keep, each computed once."""
        wanted = [name for name in names if name not in self.keep]
        self._sums |= {name: checksum(self.inputs[name]) for name in wanted if name not in self._sums}
        return {name: self._sums[name] for name in wanted}

    def body_of(self, names: tuple[str, ...]) -> tuple[bytes, ...]:
        """The held items of these names as a payload more; none for no names."""
        if names and names not in self.more:
            self.more[names] = serialise({name: self.inputs[name] for name in names})
        return (self.more[names],) if names else ()


@dataclass
class OpenOrder:
    """A client's order until it has landed: what it is made of, and what its round trips have taken so far."""

    plan: Plan
    assignment: Assignment
    future: Future[Update]
    parcel: Parcel
    install: tuple[str, ...]
    meter: bool
    planned: bool = True
    seconds: float = 0.0
    started: float = 0.0
    stored: float = 0.0
    resent: int = 0

    def message(self) -> Message:
        """The order as it is sent: the planned payloads the first time, and items that the node hasn't got."""
        more = self.parcel.body_of(self.install)
        self.resent += sum(map(len, more))
        check = self.parcel.sums(self.parcel.own if self.planned else self.parcel.inputs)
        order = order_of(self.assignment)  # of clients with one parcel, too, those with few samples have another form
        facts = {"do": "train", "version": __version__, "form": order["form"], "check": check,
                 "assignment": order["facts"], "meter": self.meter}  # fmt: skip
        return Message(facts, (*(self.parcel.bodies if self.planned else ()), *more))

    @property
    def planned_bytes(self) -> int:
        """Bytes of the planned payloads."""
        return sum(map(len, self.parcel.bodies))


class RemoteClients(Closing):
    """Clients that are nodes elsewhere; an executor of a simulation, whose clients' works wait for ``land``.

    Works of the server run in this process.  An update lies in a file in ``folder`` from when it arrives, so that
    memory doesn't grow with the cohort.  ``measure`` is the scenario's: which works nodes do once more, metered.
    """

    window = None

    def __init__(
        self,
        federation: Federation,
        roster: NodeRoster,
        folder: Path,
        *,
        deadline: float = inf,
        measure: str = "first",
        keep_non_finite: bool = False,
        on_flight: Callable[[NodeFlight], None] = lambda flight: None,
        on_message: Callable[[str], None] = lambda text: None,
    ):
        self._inline, self._roster, self._folder = Inline(federation, "cpu"), roster, folder
        self._deadline, self._measure, self._keep_non_finite = deadline, measure, keep_non_finite
        self._on_flight, self._on_message = on_flight, on_message
        self._submitted: dict[int, tuple[Assignment, Future[Update]]] = {}
        self._held: dict[int, set[str]] = {}
        self._metered: set[str] = set()

    def submit(self, assignment: Assignment) -> Future[Update]:
        """Run a work of the server; keep a client's until it lands."""
        if assignment.client is None:
            return self._inline.submit(assignment)
        future: Future[Update] = Future()
        self._submitted[assignment.client] = assignment, future
        return future

    def land(self, flights: Flights) -> Landings:
        """Play these flights on the nodes, and return their landings; ``Simulation(flown=...)`` takes this.

        A node that lacks copies gets them in a second order.
        """
        spill, until = TensorFile(self._folder), time.monotonic() + self._deadline
        parcels: dict[tuple[int, int], Parcel] = {}
        orders = {
            client: self._order(client, plan, parcels)
            for client, plan in zip(flights.client.tolist(), flights.plans, strict=True)
        }
        flown: dict[int, RealFlight] = {}
        asked = {client: order.message for client, order in orders.items()}
        while asked:
            again: list[int] = []
            for client, node, reply, spent in self._roster.ask(asked, max(until - time.monotonic(), 0.0)):
                order = orders[client]
                order.seconds += spent
                try:
                    if isinstance(reply, NoReply):
                        raise RunError(reply.why)
                    report = _report_of(reply)
                    if report.lacks and order.planned:
                        self._send_again(order, report)
                        again.append(client)
                        continue
                    update = _update_of(order, report, reply.payloads)
                except RunError as error:
                    late = isinstance(reply, NoReply) and reply.late
                    flown[client] = self._lose(flights.dispatch.round, client, node, order, str(error), late)
                else:
                    flown[client] = self._take(flights.dispatch.round, client, node, order, report, update, spill)
                del reply
            asked = {client: orders[client].message for client in again}
        return land_real_flights(flights, [flown[client] for client in orders], priced=False)

    def _order(self, client: int, plan: Plan, parcels: dict[tuple[int, int], Parcel]) -> OpenOrder:
        assignment, future = self._submitted.pop(client)
        key = id(assignment.inputs), id(plan.down)  # the parcel holds both
        if key not in parcels:
            bodies, own = split_inputs(assignment, plan.down)
            keep = frozenset(assignment.form.keep)
            parcels[key] = Parcel(assignment.inputs, plan.down, tuple(bodies), tuple(own), keep)
        parcel = parcels[key]
        held = self._held.setdefault(client, set())
        install = tuple(name for name in parcel.own if name not in held)
        meters = self._measure == "all" or (self._measure == "first" and plan.key not in self._metered)
        self._metered.add(plan.key)
        return OpenOrder(plan, assignment, future, parcel, install, meters)

    def _send_again(self, order: OpenOrder, report: NodeReport) -> None:
        """Prepare a second order with what a node lacks.  Raises RunError for names that it needn't hold."""
        if strange := [name for name in report.lacks if name not in order.parcel.inputs]:
            raise RunError(f"it lacks {strange[0]!r:.60}, which it wasn't asked for")
        order.install, order.planned = tuple(dict.fromkeys(report.lacks)), False
        order.started += report.start_up_seconds
        order.stored += report.storage_seconds

    def _lose(self, round: int, client: int, node: int | None, order: OpenOrder, why: str, late: bool) -> RealFlight:
        """A flight without an update.  Nobody knows how far it came: all that it is to hold is sent the next time."""
        order.future.cancel()
        self._held.pop(client, None)
        if order.meter:
            self._metered.discard(order.plan.key)
        where = "" if node is None else f", node {node}"
        self._on_message(f"round {round}: no update of client {client}{where}: {why}")
        seconds = min(order.seconds, self._deadline)
        self._on_flight(NodeFlight(
            round=round, client=client, node=None if node is None else str(node), lost=why,
            round_trip_seconds=order.seconds, resent_bytes=order.resent,
        ))  # fmt: skip
        if node is None:
            return RealFlight(client, 0.0, 0.0, 0.0, 0, 0, ended_in="start")
        return RealFlight(client, seconds, 0.0, 0.0, order.planned_bytes, 0, ended_in="download", late=late)

    def _take(
        self, round: int, client: int, node: int | None, order: OpenOrder, report: NodeReport, update: Update,
        spill: TensorFile,
    ) -> RealFlight:  # fmt: skip
        """A flight whose update arrived: it goes to the disk, unless the server will refuse it."""
        form, seed = order.assignment.form, order.assignment.seed
        if reason := why_refused(form, update, seed, keep_non_finite=self._keep_non_finite):
            self._on_message(f"round {round}: the update of client {client}, node {node}, is refused: {reason}")
            order.future.set_result(update)
        else:
            payloads = {name: spill.add(tensors) for name, tensors in update.payloads.items()}
            order.future.set_result(replace(update, payloads=payloads))
        down = (item.name for payload in order.plan.down for item in payload.items)
        self._held.setdefault(client, set()).update(order.parcel.own, down)
        left = min(order.seconds, self._deadline)
        spent = []
        own = report.start_up_seconds + order.started, report.storage_seconds + order.stored
        for seconds in (*own, report.compute_seconds, report.metering_seconds):
            spent.append(min(seconds, left) if seconds > 0 else 0.0)  # a node may say anything
            left -= spent[-1]
        self._on_flight(NodeFlight(
            round=round, client=client, node=str(node), lost=None, round_trip_seconds=order.seconds,
            start_up_seconds=spent[0], storage_seconds=spent[1], compute_seconds=spent[2],
            predicted_compute_seconds=order.plan.compute.seconds(order.plan.device), metering_seconds=spent[3],
            transfer_seconds=left, resent_bytes=order.resent, rss_bytes=report.rss_bytes,
        ))  # fmt: skip
        up = sum(payload.serialised_bytes for payload in form.up if payload.items)
        # the transport says when a reply came, not when an order arrived: both transfers are told by their bytes
        share = (order.planned_bytes + order.resent) / max(order.planned_bytes + order.resent + up, 1)
        return RealFlight(
            client, left * share, spent[1] + spent[2], left * (1 - share), order.planned_bytes, up,
            start_up_seconds=spent[0], metering_seconds=spent[3],
        )  # fmt: skip


def _report_of(reply: Message) -> NodeReport:
    """What a node says.  Raises RunError for an error of the node, and for what is no report."""
    if "error" in reply.facts:
        raise RunError(f"{reply.facts['error']}")
    return from_data(NodeReport, reply.facts, "its report")


def _update_of(order: OpenOrder, report: NodeReport, bodies: Sequence[bytes]) -> Update:
    """The update of a reply, not checked yet.  Raises RunError for payloads that can't be read.

    What is larger than its work sends isn't read: it stands as a payload that the work hasn't, which is refused.
    """
    form = order.assignment.form
    sent = [payload for payload in form.up if payload.items]
    if report.lacks:
        raise RunError(f"it still lacks {report.lacks[0]:.60}, which it was sent")
    if len(bodies) != len(sent):
        raise RunError(f"it sent {len(bodies)} payloads of {len(sent)}")
    payloads: dict[str, dict[str, Tensor]] = {payload.name: {} for payload in form.up}
    for payload, body in zip(sent, bodies, strict=True):
        if len(body) > payload.serialised_bytes:
            payloads[f"{payload.name}, {len(body)} bytes"] = {}
            continue
        try:
            payloads[payload.name] = deserialise(body)
        except (SafetensorError, KeyError) as error:  # of a dtype that torch lacks
            raise RunError(f"its payload {payload.name} isn't safetensors: {error}") from None
    host = HostFigures(wall_seconds=report.compute_seconds, rss_bytes=report.rss_bytes, process=report.process)
    whose = SERVER if order.assignment.client is None else order.assignment.client
    return Update(
        whose, form.kind, {}, order.assignment.work, payloads, {}, loss=report.loss, metrics=report.metrics,
        updates=report.updates, seed=report.seed, peak_memory_bytes=report.peak_memory_bytes, host=host,
    )  # fmt: skip
