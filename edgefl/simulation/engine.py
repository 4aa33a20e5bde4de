"""The simulation: rounds on a virtual clock, with real training behind futures.

Virtual time comes from predicted cost, so the clock never waits for real compute: a work is submitted when its client
is dispatched, and its future is awaited where the update reaches the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

import simpy
from torch import Tensor

from edgefl import registry, seeds
from edgefl.cost import ComputeCost, Predictor, duration, traffic, transfer_seconds
from edgefl.eligibility import Verdict
from edgefl.errors import RunError
from edgefl.methods import ServerState, Update
from edgefl.runs import SUMMED
from edgefl.simulation.judging import judged
from edgefl.simulation.ledger import Ledger, final_blocks, preinstalled
from edgefl.simulation.records import client_record, server_record, verdict_record
from edgefl.simulation.rounds import Flight
from edgefl.simulation.setup import Plan, Planner, Setup, Start
from edgefl.training import Executor, Report, Task
from edgefl.work import Work

Observer = Callable[[str, Mapping[str, Any]], None]
Events = Generator[simpy.Event, Any, Any]


class Journal(Protocol):
    """Where records and checkpoints go (edgefl.runs.RunDirectory)."""

    def append(self, table: Any, records: Sequence[Mapping[str, Any]]) -> None:
        """Append records to a table."""
        ...

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Keep everything that the next round depends on."""
        ...


@dataclass(frozen=True)
class _ServerWork:
    """A work of the server under way."""

    work: Work
    when: str
    compute: ComputeCost
    future: Future[Report]


class Simulation:
    """One run.  ``run`` plays all rounds of the schedule; ``restore`` goes on from a checkpoint instead."""

    def __init__(
        self,
        setup: Setup,
        executor: Executor,
        predictor: Predictor,
        journal: Journal,
        observe: Observer = lambda event, facts: None,
    ):
        self.setup, self.executor, self.journal, self.observe = setup, executor, journal, observe
        self.planner = Planner(setup, predictor)
        self.policy = registry.get("round policy", setup.round.policy)(setup.round)
        self.select = registry.get("selection", setup.round.selection)
        self.state: ServerState = setup.method.initial(setup.seed)
        self.ledger = Ledger()
        self.kept: dict[int, dict[str, Tensor]] = {}
        self.round, self.now = 0, 0.0
        self.metered: set[str] = set()
        self.said: dict[int, str] = {}
        self.totals: Counter[str] = Counter()
        self.metrics: dict[str, dict[str, float]] = {}

    # checkpoints ------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        tensors = dict(self.state.tensors)
        for client, kept in self.kept.items():
            tensors |= {f"kept:{client}:{name}": value for name, value in kept.items()}
        state = {
            "now": self.now,
            "versions": dict(self.state.versions),
            "ledger": self.ledger.rows(),
            "metered": sorted(self.metered),
            "said": {str(c): s for c, s in self.said.items()},
            "totals": dict(self.totals),
            "metrics": self.metrics,
        }
        self.journal.checkpoint(self.round, tensors, state)

    def restore(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on after ``round``, from what was kept then.  Raises RunError if it doesn't match this setup."""
        held = {a: t for a, t in tensors.items() if not a.startswith("kept:")}
        # tables may come into being while a run goes on
        if {a for a in held.keys() ^ self.state.tensors.keys() if not a.startswith("table/")}:
            raise RunError("the checkpoint holds other tensors than this scenario's models have")
        self.kept = {}
        for name in tensors.keys() - held.keys():
            _, client, rest = name.split(":", 2)
            self.kept.setdefault(int(client), {})[rest] = tensors[name]
        self.state = ServerState(held, dict(state["versions"]))
        self.ledger = Ledger.from_rows(state["ledger"])
        self.round, self.now = round, state["now"]
        self.metered = set(state["metered"])
        self.said = {int(c): s for c, s in state["said"].items()}
        self.totals, self.metrics = Counter(state["totals"]), state["metrics"]

    # the run ----------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Play the rounds that are left; gives the run's result: final metrics and totals."""
        env = simpy.Environment(initial_time=self.now)
        if self.round < self.setup.schedule.rounds:
            env.run(env.process(self._rounds(env)))
        return {
            "rounds": self.round,
            "virtual_seconds": self.now,
            "metrics": self.metrics,
            "totals": dict(self.totals),
        }

    def _rounds(self, env: simpy.Environment) -> Events:
        while self.round < self.setup.schedule.rounds:
            yield from self._round(env, self.round + 1)
            self.round += 1
            self.now = float(env.now)
            self._checkpoint()

    def _round(self, env: simpy.Environment, round: int) -> Events:
        started = float(env.now)
        stage = self.setup.schedule.stage(round)
        spent = Counter[str]()
        server: list[dict[str, Any]] = []
        yield from self._serve(env, self.setup.method.before(self.state, round), round, "before", server)
        plans, verdicts = self._plans(round)
        eligible: dict[str, list[int]] = {
            kind: [] for kind in self.setup.clients.kinds if self.setup.method.participates(kind, round)
        }
        for client, verdict in verdicts.items():
            if verdict.eligible:
                eligible[plans[client].kind].append(client)
        population = {kind: len(self.setup.of_kind(kind)) for kind in eligible}
        chosen = self.select(eligible, population, self.setup.round, self.setup.seed, round)
        self.observe("round", {"round": round, "stage": stage.index, "selected": len(chosen), "now": env.now})
        reports: dict[int, Report | None] = {}

        def arrive(flight: Flight) -> None:
            reports[flight.plan.client] = self._await(flight, round)

        flights = self._dispatch([plans[c] for c in chosen], round, arrive)
        if flights:
            yield from self.policy.collect(env, flights)
        arrived = [f for f in flights if f.finished]
        for flight in flights:
            if not flight.finished:
                arrive(flight)
        outcome = "completed"
        if not any(eligible.values()):
            outcome = "nobody eligible"
        elif len(arrived) < self.setup.round.quorum:
            outcome = "below quorum"
        before = self.state
        if outcome == "completed":
            updates = self._updates(arrived, reports, before, round)
            self.state = self.setup.method.aggregate(self.state, updates)
            yield from self._serve(env, self.setup.method.after(self.state, round), round, "after", server)
        last = round == self.setup.schedule.rounds
        metrics: dict[str, dict[str, float]] = {}
        if last or round % self.setup.evaluation.every == 0:
            split = self.setup.evaluation.final if last else self.setup.evaluation.split
            metrics = yield from self._evaluate(env, round, split, server)
            self.metrics = metrics
        final = yield from self._deliver_final(env, round, [p for c, p in plans.items() if verdicts[c].eligible])
        clients = [client_record(self.setup, f, reports[f.plan.client], round) for f in flights]
        for record in clients:
            for field in SUMMED:
                spent[field] += record[field]
        spent["download_bytes"] += final[0]
        spent["serialised_download_bytes"] += final[1]
        losses: dict[str, list[tuple[float, int]]] = {}
        for record in clients:
            if record["outcome"] == "finished" and record["loss"] is not None:
                losses.setdefault(record["kind"], []).append((record["loss"], record["samples"]))
        samples = self.setup.clients.client_samples
        record = {
            "round": round,
            "stage": stage.index,
            "outcome": outcome,
            "started_virtual_seconds": started,
            "virtual_seconds": float(env.now) - started,
            "clients": population,
            "eligible": {kind: len(found) for kind, found in eligible.items()},
            "samples": {kind: int(samples[self.setup.of_kind(kind)].sum()) for kind in eligible},
            "eligible_samples": {kind: int(sum(samples[c] for c in found)) for kind, found in eligible.items()},
            "selected": len(flights),
            "finished": len(arrived),
            "late": len(flights) - len(arrived),
            **{field: spent[field] for field in SUMMED},
            "final_delivery_bytes": final[0],
            "server_seconds": sum(w["seconds"] for w in server),
            "server_works": server,
            "losses": {k: sum(x * n for x, n in v) / sum(n for _, n in v) for k, v in losses.items()},
            "metrics": metrics,
        }
        self.totals.update({field: record[field] for field in (*SUMMED, "selected", "finished", "late")})
        self.totals["server_seconds"] += record["server_seconds"]
        self.journal.append("clients", clients)
        self.journal.append("rounds", [record])
        hosts = [{"round": round, "client": c, **r.host} for c, r in sorted(reports.items()) if r is not None]
        self.journal.append("host", hosts)
        self.observe("record", record)

    # who can take part ------------------------------------------------------------------------------------------

    def _plans(self, round: int) -> tuple[dict[int, Plan], dict[int, Verdict]]:
        """``judged``, with a record of every verdict that is new."""
        plans, verdicts = judged(self.planner, round, self.ledger, self.state.versions)
        self.journal.append("eligibility", self._verdict_records(plans, verdicts, round))
        return plans, verdicts

    def _verdict_records(
        self, plans: Mapping[int, Plan], verdicts: Mapping[int, Verdict], round: int
    ) -> list[dict[str, Any]]:
        """A record for each client whose verdict is new: another stage, or another answer."""
        records = []
        for client in sorted(plans):
            plan, verdict = plans[client], verdicts[client]
            sign = f"{plan.stage.index}/{verdict.eligible}/{verdict.binding}"
            if self.said.get(client) != sign:
                self.said[client] = sign
                records.append(verdict_record(self.setup, plan, verdict, round))
        return records

    # clients ----------------------------------------------------------------------------------------------------

    def _inputs(self, plan: Plan, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
        kept = self.kept.get(plan.client, {})
        return {**start, **{name: kept[name] for name in plan.work.keep if name in kept}}

    def _dispatch(self, plans: Sequence[Plan], round: int, arrive: Callable[[Flight], None]) -> list[Flight]:
        setup = self.setup
        jitter = setup.fleet.jitter(setup.seed, round) if plans else {}
        metered = {}
        for plan in plans:
            metered[plan.client] = setup.measure == "all" or plan.key not in self.metered
            self.metered.add(plan.key)
        futures = {}
        starts: dict[Start, dict[str, Tensor]] = {}
        # the longest first, so that no worker is left with it when the others are done; results don't depend on it
        for plan in sorted(plans, key=lambda p: -p.cost.budgets()["flops"]):
            seed = seeds.key(setup.seed, "training", plan.client, round)
            if plan.start not in starts:
                held = preinstalled(plan.work, plan.down, self.state.versions)
                starts[plan.start] = self.state.wire(plan.work, held)
            inputs = self._inputs(plan, starts[plan.start])
            futures[plan.client] = self.executor.submit(
                Task(plan.work, inputs, plan.client, seed, metered[plan.client])
            )
        flights = []
        for plan in plans:
            client = plan.client
            factors = tuple(float(jitter[p][client]) for p in ("download", "compute", "upload"))
            spent = duration(
                plan.cost.compute,
                plan.cost.traffic,
                setup.fleet.device(client),
                setup.fleet.link(client),
                jitter=factors,  # type: ignore[arg-type]
            )
            self.ledger.sent(client, plan.down, self.state.versions)
            flights.append(Flight(plan, spent, futures[client], metered[client], arrive))
        return flights

    def _await(self, flight: Flight, round: int) -> Report | None:
        """The report of a flight; a late client's training is dropped unless its measurement is wanted."""
        if not flight.finished and not flight.metered and flight.future.cancel():
            return None
        report = flight.future.result()
        if flight.finished and report.result.kept:
            # a shallower stage keeps fewer blocks; what it doesn't name stays
            self.kept.setdefault(flight.plan.client, {}).update(report.result.kept)
        self.observe("client", {"round": round, "client": flight.plan.client, "loss": report.result.loss})
        return report

    def _updates(
        self, flights: Sequence[Flight], reports: Mapping[int, Report | None], state: ServerState, round: int
    ) -> list[Update]:
        """What arrived, decoded, beside what it started from: ``state`` as it was at dispatch."""
        starts: dict[Start, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}
        updates = []
        for flight in flights:
            plan, report = flight.plan, reports[flight.plan.client]
            assert report is not None
            if plan.start not in starts:
                inputs = state.inputs(plan.work, preinstalled(plan.work, plan.down, state.versions))
                starts[plan.start] = inputs, state.base(plan.work, inputs)
            inputs, base = starts[plan.start]
            bases, sent = plan.work.bases(inputs), report.result.payloads
            payloads = {p.name: p.decoded(sent[p.name], bases) for p in plan.work.up}
            source = self.setup.clients.client(plan.client)
            private = {
                q: source.size(replace(p, patterns=(q,)))
                for p in plan.work.passes
                if p.data == "private"
                for q in p.patterns
            }
            updates.append(Update(plan.client, plan.kind, private, plan.work, payloads, base, round))
        return updates

    # the server -------------------------------------------------------------------------------------------------

    def _serve(
        self, env: simpy.Environment, works: Sequence[Work], round: int, when: str, server: list[dict[str, Any]]
    ) -> Events:
        """The server's own works one after the other, charged to its device; each changes the state."""
        stage = self.setup.schedule.stage(round)
        for index, work in enumerate(works):
            work = self.setup.staged(work, stage)
            report = yield from self._server_work(env, self._submit(work, round, when, index), server)
            self.state = self.setup.method.absorb(self.state, work, report.result)

    def _submit(self, work: Work, round: int, when: str, index: int) -> _ServerWork:
        key, computed = self.planner.server(work)
        metered = self.setup.measure == "all" or key not in self.metered
        self.metered.add(key)
        seed = seeds.key(self.setup.seed, f"server {when}", round, index)
        future = self.executor.submit(Task(work, self.state.inputs(work), None, seed, metered))
        return _ServerWork(work, when, computed, future)

    def _server_work(self, env: simpy.Environment, under_way: _ServerWork, server: list[dict[str, Any]]) -> Events:
        work, computed = under_way.work, under_way.compute
        spent = duration(computed, traffic((), ()), self.setup.fleet.server, None)
        yield env.timeout(spent.compute_seconds)
        report = under_way.future.result()
        server.append(server_record(self.setup, work, under_way.when, computed, spent.compute_seconds, report))
        return report

    def _evaluate(self, env: simpy.Environment, round: int, split: str, server: list[dict[str, Any]]) -> Events:
        works = self.setup.evaluations(split, self.setup.schedule.stage(round))
        submitted = [self._submit(work, round, f"evaluate {split}", i) for i, (work, _) in enumerate(works)]
        found: dict[str, dict[str, float]] = {}
        for under_way, (_, kinds) in zip(submitted, works, strict=True):
            report = yield from self._server_work(env, under_way, server)
            found |= {kind: dict(report.result.metrics) for kind in kinds}
        return {kind: found[kind] for kind in self.setup.clients.kinds}

    def _deliver_final(self, env: simpy.Environment, round: int, plans: Sequence[Plan]) -> Events:
        """Send a finished stage's blocks once to every client that can hold them; tensor and serialised bytes."""
        stage = self.setup.schedule.ends(round)
        if stage is None or not self.setup.schedule.deliver_final:
            return 0, 0
        bytes_ = serialised = 0
        slowest = 0.0
        for plan in plans:
            payload = final_blocks(plan.work, stage)
            link = self.setup.fleet.link(plan.client)
            bytes_ += payload.tensor_bytes
            serialised += payload.serialised_bytes
            taken = transfer_seconds(payload.serialised_bytes, link.download_bits_per_second, link)
            slowest = max(slowest, taken)
            self.ledger.sent(plan.client, (payload,), self.state.versions)
        yield env.timeout(slowest)
        return bytes_, serialised
