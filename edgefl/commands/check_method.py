"""``check_method``: the contract between a method and everything that runs it, held on a tiny real federation."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from edgefl import models, registry, seeds
from edgefl.commands.compose import check_parts, compose
from edgefl.cost import Predictor, cost_key
from edgefl.errors import EdgeflError, MethodError, UnknownName
from edgefl.memo import cache_folder
from edgefl.methods import Method, ServerState, Update
from edgefl.planning import Setup
from edgefl.scenario import Scenario, load
from edgefl.schedules import Schedule, Stage, restrict
from edgefl.training import Node, Processes, Report, Task
from edgefl.work import Meter, Payload, Result, Source, Trace, Work, run
from edgefl.work.slices import fits
from edgefl.work.torch_device import device_of

KINDS = ("image", "text", "image-text")

WRITTEN = "a work survives being written down"
BLIND = "a work depends on kind and round alone"
MEETS = "every schedule can cut the work to its stages"
BUILT = "the model builds without data"
ADDRESSES = "what travels has its place at the server"
WHOLE = "the model arrives whole"
NAMES = "what trains exists once the edits are applied"
KEPT = "what a client keeps has a first value"
MEMORY = "predicted memory is the measured memory"
FLOPS = "predicted FLOPs are the executed ones"
BYTES = "predicted bytes are the serialised ones"
TRAINS = "training moves what trains"
SEED = "the same seed gives the same bits"
PROCESS = "a worker process gives the same bits"
PURE = "aggregation changes nothing that it is given and remembers nothing"
ORDER = "aggregation doesn't depend on the order of updates"
PLACES = "aggregation keeps every address, its shape and its precision"
VERSIONS = "what changes gets a new version"
INACTIVE = "what a stage doesn't train stays as it is"
SPARSE = "aggregation bears an update of one client alone"
SERVER = "the server's works run"
METRICS = "evaluation gives finite metrics"
SERVES = "some kind of client takes part"

_SETTING: dict[str, Any] = {
    "name": "check",
    "seed": 1,
    "data": {
        "source": "glyphs",
        "clients": dict.fromkeys(KINDS, 2),
        "partition": "iid",
        "samples": {"image": 27, "text": 25, "image-text": 24},
        "size": 16,
        "validation": 40,
        "test": 24,
        "public": 24,
    },
    "model": {
        "image": {"blocks": 2, "width": 16, "heads": 2, "patch": 8},
        "text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 8},
    },
    # three batches in three places: one more of each than a prediction runs
    "training": {"batch": 8, "epochs": 3},
    "evaluation": {"batch": 16, "pairs": 40},
}


@dataclass(frozen=True)
class CheckReport:
    """What ``check_method`` found: how often each rule was checked, and a sentence for each time it was broken."""

    method: str
    checks: Mapping[str, int]
    failures: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Schedules whose parts can't be cut of this method's models, each with the reason."""

    @property
    def ok(self) -> bool:
        """Whether no rule was broken."""
        return not self.failures

    def __str__(self) -> str:
        """For people: the outcome in a line, then every failure in one of its own."""
        count = f"{sum(self.checks.values())} checks of {len(self.checks)} rules"
        if self.ok:
            less = "".join(f"; not under {name}: {why}" for name, why in self.refused.items())
            return f"{self.method}: {count}, all kept{less}"
        broken = f"{len(self.failures)} broken" if len(self.failures) > 1 else "one broken"
        return "\n".join([f"{self.method}: {count}, {broken}", *(f"  - {failure}" for failure in self.failures)])


def check_method(
    method: str | type[Method],
    *,
    schedules: Sequence[str | Mapping[str, Any]] | None = None,
    kinds: Sequence[str] = KINDS,
    processes: bool = False,
    **options: Any,
) -> CheckReport:
    """Hold a method to the rules that edgefl relies on, in a tiny federation and under every schedule.

    Among the rules: predicted cost is measured cost, aggregation is pure and independent of the order of updates, the
    same seed gives the same bits.

    Args:
        method: The registered name of a method, or a class that needn't be registered yet.
        schedules: Names or sections (``{"name": "layerwise", "stages": [1, 1]}``); by default every registered
            schedule.
        kinds: The client kinds of the federation; those that the method lets take part are checked.
        processes: Whether it also trains in a worker process.  A script then needs ``if __name__ == "__main__"``, and
            steps and edits must be registered.
        **options: Fields of the scenario's ``method`` section.

    Returns:
        A report: ``ok``, ``checks`` (how often each rule was checked), ``failures`` (a sentence for each time that one
        was broken, with the kind and the stage) and ``refused`` (schedules that can't cut the method's models, with
        the reason).  ``str()`` of it is a text for people.

    Raises:
        UnknownName: No method or schedule of this name is registered.
        MethodError: The method can't be loaded or made with these options.  Everything else is in the report.
    """
    kind = _loaded(method)
    name = method if isinstance(method, str) else kind.__name__
    scenario = _scenario(kinds, kind.needs)
    setup = compose(scenario)
    setting = setup.method.setting
    section = _options("method", name, kind, options)
    findings = _Findings()
    try:
        made = kind(section, setting)
    except EdgeflError as error:
        raise MethodError(f"the method {name!r} can't be made for clients with {', '.join(kinds)}: {error}") from error
    blocks: dict[str, int] = {}
    for each in setting.kinds.values():
        blocks |= models.blocks(each.model)
    checker = _Checker(made, lambda: kind(section, setting), scenario, setup, findings)
    stages = registry.names("schedule") if schedules is None else schedules
    with _alone():
        for wanted in stages:
            fields = {"name": wanted} if isinstance(wanted, str) else dict(wanted)
            shape: Any = registry.get("schedule", fields["name"])
            checker.schedule(fields["name"], shape(_options("schedule", fields["name"], shape, fields), blocks))
    if processes:
        checker.elsewhere()
    return CheckReport(name, dict(findings.checks), tuple(findings.failures), findings.refused)


@contextmanager
def _alone() -> Iterator[None]:
    """One thread, as where training runs, and the global generator as it was."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        torch.set_num_threads(threads)


def _scenario(kinds: Sequence[str], needs: Mapping[str, Any]) -> Scenario:
    data = {**_SETTING["data"], "clients": dict.fromkeys(kinds, 2), **needs.get("data", {})}
    return load({**_SETTING, **needs, "data": data})


def _loaded(method: str | type[Method]) -> type[Method]:
    if not isinstance(method, str):
        found: Any = method
    else:
        try:
            found = registry.get("method", method)
        except UnknownName:
            raise
        except EdgeflError as error:
            raise MethodError(str(error)) from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise MethodError(f"{found!r} is not a subclass of edgefl.methods.Method")
    return found


def _options(noun: str, name: str, owner: Any, fields: Mapping[str, Any]) -> Any:
    shape = getattr(owner, "Options", None)
    if shape is None:
        return None
    try:
        return shape(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MethodError(f"the {noun} {name!r} doesn't take these options: {where}: {first['msg']}") from error


class _Findings:
    """Counts what was checked, and collects a sentence for each time that it didn't hold."""

    def __init__(self) -> None:
        self.checks: Counter[str] = Counter()
        self.failures: list[str] = []
        self.refused: dict[str, str] = {}

    def expect(self, rule: str, where: str, holds: bool, found: str = "") -> bool:
        """Note whether the rule holds here; ``found`` says what was found instead."""
        self.checks[rule] += 1
        if not holds:
            self.failures.append(f"{rule}: {where}: {found}" if found else f"{rule}: {where}")
        return holds

    def none(self, rule: str, where: str, names: Collection[str], told: str) -> bool:
        """Note that the rule holds if there are no such names; ``told`` says what is wrong with them (``{}``)."""
        return self.expect(rule, where, not names, told.format(_some(names)) if names else "")

    @contextmanager
    def attempt(self, rule: str, where: str) -> Iterator[None]:
        """What is raised inside breaks the rule: an author's code may raise anything."""
        try:
            yield
        except Exception as error:
            told = str(error) if isinstance(error, EdgeflError) else f"{type(error).__name__}: {error}"
            self.expect(rule, where, False, told)


@dataclass(frozen=True)
class _Place:
    """Where a failure was found."""

    schedule: str
    stage: Stage
    round: int

    def at(self, what: str) -> str:
        return f"{what}, {self.schedule}, {self.stage}"


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def _differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    return sorted(name for name in a.keys() | b.keys() if name not in a or name not in b or not _same(a[name], b[name]))


def _some(names: Collection[str]) -> str:
    """The first of these names, and how many more there are."""
    first, *more = sorted(names)
    return f"{first!r}" + (f" and {len(more)} more" if more else "")


def _flat(result: Result) -> dict[str, Tensor]:
    sent = {f"{p}: {n}": t for p, named in result.payloads.items() for n, t in named.items()}
    return sent | {f"kept: {n}": t for n, t in result.kept.items()}


class _Checker:
    """One method in one tiny federation."""

    def __init__(
        self, method: Method, again: Callable[[], Method], scenario: Scenario, setup: Setup, findings: _Findings
    ):
        self.method, self.again, self.setup, self.findings = method, again, setup, findings
        self.scenario = scenario
        self.node = Node(setup.clients, device_of("cpu"))
        self.predictor = Predictor()
        self.measured: set[str] = set()
        self.tasks: list[tuple[str, Task, Report]] = []

    # one schedule -----------------------------------------------------------------------------------------------

    def schedule(self, name: str, schedule: Schedule) -> None:
        """One round of every stage, the server's state carried on from one to the next."""
        findings = self.findings
        try:
            check_parts(self.method, schedule)
        except MethodError as error:
            findings.refused[name] = str(error)
            return
        with findings.attempt(PLACES, f"the first state, {name}"):
            state = self.method.initial(1)
            apart = _differing(state.tensors, self.again().initial(1).tensors)
            findings.none(SEED, f"the first state, {name}", apart, "{} differs when made again")
            served = set[str]()
            for round in range(1, schedule.rounds + 1):
                stage = schedule.stage(round)
                if round > 1 and schedule.stage(round - 1) is stage:
                    continue
                place = _Place(name, stage, round)
                kinds = [k for k in self.setup.clients.kinds if self.method.participates(k, round)]
                served |= set(kinds)
                ways, few = schedule.candidates(round), self.fewest(kinds)
                for first in range(0, len(ways), few):  # where more is offered than there are clients, they go on
                    state = self.round(place, kinds, state, (*ways[first:], *ways[:first]))
            found = "participates() is true for none of " + ", ".join(self.setup.clients.kinds)
            findings.expect(SERVES, name, bool(served), found)

    def fewest(self, kinds: Sequence[str]) -> int:
        """Clients of the kind that has the fewest."""
        return min((len(self.setup.of_kind(kind)) for kind in kinds), default=1)

    def round(
        self, place: _Place, kinds: Sequence[str], state: ServerState, candidates: Sequence[Stage]
    ) -> ServerState:
        """Server, clients, aggregation, server, evaluation, as the simulation has them."""
        state = self.server("before", place, state)
        updates: list[Update] = []
        for kind in kinds:
            for client, stage in zip(self.setup.of_kind(kind).tolist(), cycle(candidates), strict=False):
                update = self.client(client, kind, _Place(place.schedule, stage, place.round), state)
                updates += [update] if update else []
        if updates:
            with self.findings.attempt(PURE, place.at("aggregate()")):
                state = self.aggregation(place, state, updates)
            state = self.server("after", place, state)
        for kind in self.setup.clients.kinds:
            self.evaluation(kind, place, state)
        return state

    # clients ----------------------------------------------------------------------------------------------------

    def client(self, client: int, kind: str, place: _Place, state: ServerState) -> Update | None:
        """Everything about one client's round; None if it didn't come to an update."""
        findings, where = self.findings, place.at(kind)
        source = self.setup.clients.client(client)
        with findings.attempt(MEETS, where):
            full = self.method.work(kind, place.round)
            same = full.encode() == self.again().work(kind, place.round).encode()
            findings.expect(BLIND, where, same, "asked twice, it differs")
            findings.expect(BLIND, where, full.kind == kind, f"its kind is {full.kind!r}")
            work = restrict(full, place.stage).fitted(source.size)
            if not self.described(work, where, place.stage, state):
                return None
            task = Task(work, state.inputs(work), client, seeds.key(1, "check", client, place.round))
            report = self.run(task, source, TRAINS, where)
            if report is None:
                return None
            if client == self.setup.of_kind(kind)[0]:
                self.repeated(task, report, where)
                self.tasks.append((where, task, report))
            self.trained(task, report, source, where)
            samples = {q: source.size(p) for p in work.passes if p.data == "private" for q in p.patterns}
            return Update(client, kind, samples, work, report.result.payloads, state.base(work), place.round)
        return None

    def described(self, work: Work, where: str, stage: Stage | None, state: ServerState) -> bool:
        """The work as plain data, and the names in it; False if it can't be run."""
        findings = self.findings
        with findings.attempt(WRITTEN, where):
            decoded = Work.decode(work.encode())
            same = decoded == work and decoded.encode() == work.encode()
            found = "decode(encode()) is another work; args take plain JSON: lists, no tuples"
            findings.expect(WRITTEN, where, same, found)
        own: set[str] = set()
        with findings.attempt(BUILT, where):
            with torch.device("meta"):
                module = models.build(work.model)
            own = set(module.state_dict())
            findings.expect(BUILT, where, True)
            runs = self.travels(work, where, own, state)
            names = _after_edits(work, module)
            lost = set(work.trainable) - names
            runs &= findings.none(NAMES, where, lost, "{} is trainable but not there")
            idle = {n for n in work.trainable if stage and not stage.active(n)}
            runs &= findings.none(NAMES, where, idle, "{} trains outside its stage")
            return runs
        return False

    def travels(self, work: Work, where: str, own: set[str], state: ServerState) -> bool:
        """Addresses and shapes of what travels; False if the work can't be run with them."""
        findings, good = self.findings, True
        for way, payloads in (("down", work.down), ("up", work.up)):
            for item in (i for p in payloads for i in p.items):
                held = state.tensors.get(item.source)
                if held is None:
                    if way == "up" and item.source.startswith("table/"):
                        continue
                    found = f"{item.name!r} travels {way} as {item.source!r}, which initial() doesn't have"
                    good &= findings.expect(ADDRESSES, where, False, found)
                elif not fits(item.cut, held.shape, item.shape):
                    found = f"{item.name!r} travels {way} as {item.shape}; {item.source!r} is {tuple(held.shape)}"
                    good &= findings.expect(ADDRESSES, where, way == "up" and item.source.startswith("table/"), found)
        findings.expect(ADDRESSES, where, True)
        arriving = {i.name for p in work.down for i in p.items}
        lost = own - arriving
        good &= findings.none(WHOLE, where, lost, "{} isn't in down: it would start at random in every round")
        if work.keep:
            lost = set(work.keep) - arriving
            good &= findings.none(KEPT, where, lost, "{} is kept but not in down, which gives its first value")
        return good

    def run(self, task: Task, source: Source, rule: str, where: str) -> Report | None:
        """Run a task; the first of each cost is also measured, and compared with its prediction."""
        findings = self.findings
        key = cost_key(task.work, source)
        with findings.attempt(rule, where):
            report = self.node.run(task)
            if key not in self.measured:
                self.measured.add(key)
                with findings.attempt(MEMORY, where):
                    self.measure(task, source, where)
            self.sizes(task.work.up, report.result.payloads, where)
            inputs = {p.name: {i.name: task.inputs[i.name] for i in p.items} for p in task.work.down}
            self.sizes(task.work.down, inputs, where)
            return report
        return None

    def measure(self, task: Task, source: Source, where: str) -> None:
        """Prediction and measurement, to the byte and the FLOP.

        Every step is metered: what grows from batch to batch shows.
        """
        predicted = self.predictor.trace(task.work, source)
        meter, module = Meter(most=sys.maxsize), models.build(task.work.model)
        run(task.work, task.inputs, source, module=module, device=device_of("cpu"), seed=task.seed, meter=meter)
        measured = meter.trace()
        parts = [
            f"{part} {predicted.memory_bytes[part]} predicted, {measured.memory_bytes[part]} measured"
            for part in predicted.memory_bytes
            if predicted.memory_bytes[part] != measured.memory_bytes[part]
        ]
        same = predicted.peak_memory_bytes == measured.peak_memory_bytes and not parts
        found = f"{predicted.peak_memory_bytes} bytes predicted, {measured.peak_memory_bytes} measured"
        found = "; ".join([found, *parts])
        self.findings.expect(MEMORY, where, same, found)

        def flops(trace: Trace) -> dict[tuple[int, str], tuple[int, int]]:
            return {key: (step.forward_flops, step.backward_flops) for key, step in trace.steps.items()}

        found = f"forward and backward by pass and pattern: {flops(predicted)} predicted, {flops(measured)} measured"
        self.findings.expect(FLOPS, where, flops(predicted) == flops(measured), found)

    def sizes(self, payloads: Sequence[Payload], tensors: Mapping[str, Mapping[str, Tensor]], where: str) -> None:
        """Each payload as it would travel."""
        for payload in payloads:
            if payload.items:
                body = safetensors.torch.save({n: t.contiguous().clone() for n, t in tensors[payload.name].items()})
                found = f"payload {payload.name!r} has {len(body)} bytes, described as {payload.serialised_bytes}"
                self.findings.expect(BYTES, where, len(body) == payload.serialised_bytes, found)

    def trained(self, task: Task, report: Report, source: Source, where: str) -> None:
        """Whether training did something, and something finite."""
        work, loss, expect = task.work, report.result.loss, self.findings.expect
        if not any(p.train for p in work.passes):
            return
        if not expect(TRAINS, where, loss is not None, "no batch gave a loss to train on"):
            return
        assert loss is not None
        expect(TRAINS, where, math.isfinite(loss), f"the mean loss is {loss}")
        left = set(work.trainable)
        sent = {n: t for named in report.result.payloads.values() for n, t in named.items()} | dict(report.result.kept)
        pairs = [(task.inputs[n], t) for n, t in sent.items() if n in left and n in task.inputs]
        moved = any(not _same(before.to(after.dtype), after) for before, after in pairs)
        expect(TRAINS, where, moved or not pairs, "nothing that trains and is sent up has changed")

    def repeated(self, task: Task, report: Report, where: str) -> None:
        """The same task here, where other tasks ran since, and on a fresh node."""
        with self.findings.attempt(SEED, where):
            for node in (self.node, Node(self.setup.clients, device_of("cpu"))):
                self.alike(SEED, report, node.run(task), where)
        if task.work.keep and report.result.kept:
            kept = replace(task, inputs={**task.inputs, **report.result.kept})
            with self.findings.attempt(KEPT, where):
                self.measure(kept, self.setup.clients.client(task.client or 0), f"{where}, with what was kept")

    def alike(self, rule: str, one: Report, other: Report, where: str) -> None:
        """Two reports of one task."""
        apart = _differing(_flat(one.result), _flat(other.result))
        self.findings.none(rule, where, apart, "{} differs")
        same = (one.result.loss, one.result.metrics) == (other.result.loss, other.result.metrics)
        self.findings.expect(rule, where, same, f"loss {one.result.loss} and {other.result.loss}")

    def elsewhere(self) -> None:
        """The same tasks in a worker process."""
        scenario, tokens = self.scenario, self.scenario.model.tokens
        with Processes(scenario.data, scenario.seed, tokens, cache_folder(), 1, "cpu") as executor:
            futures = [executor.submit(task) for _, task, _ in self.tasks]
            for (where, _, report), future in zip(self.tasks, futures, strict=True):
                with self.findings.attempt(PROCESS, where):
                    self.alike(PROCESS, report, future.result(), where)

    # the server -------------------------------------------------------------------------------------------------

    def aggregation(self, place: _Place, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Aggregate in three ways, and compare."""
        expect, none, where = self.findings.expect, self.findings.none, place.at("aggregate()")
        held = {a: t.clone() for a, t in state.tensors.items()}
        versions = dict(state.versions)
        sent = [{a: t.clone() for a, t in u.sent()} for u in updates]
        new = self.method.aggregate(state, updates)
        changed = _differing(held, state.tensors)
        none(PURE, where, changed, "{} was changed in place")
        expect(PURE, where, versions == dict(state.versions), "the versions of the state given were changed")
        touched = [n for u, old in zip(updates, sent, strict=True) for n in _differing(old, dict(u.sent()))]
        none(PURE, where, touched, "{} of an update was changed")
        apart = _differing(new.tensors, self.method.aggregate(state, updates).tensors)
        none(PURE, where, apart, "{} differs when asked again")
        fresh = self.again().aggregate(state, updates).tensors
        apart = _differing(new.tensors, fresh)
        none(PURE, where, apart, "{} differs for a method made anew: what a round leaves behind belongs in the state")
        apart = _differing(fresh, self.again().aggregate(state, list(reversed(updates))).tensors)
        none(ORDER, where, apart, "{} differs: sort the updates by client")
        self.followed(place, where, state, new)
        for update in updates:
            with self.findings.attempt(SPARSE, where):
                alone = self.method.aggregate(state, [update])
                self.followed(place, f"{where} of one {update.kind} client alone", state, alone, SPARSE)
        return new

    def followed(self, place: _Place, where: str, old: ServerState, new: ServerState, rule: str = PLACES) -> None:
        """What every next state must keep."""
        none = self.findings.none
        lost = old.tensors.keys() - new.tensors.keys()
        none(rule, where, lost, "{} is gone")
        more = {a for a in new.tensors.keys() - old.tensors.keys() if not a.startswith("table/")}
        none(rule, where, more, "{} is new; a later address begins with table/")
        unversioned = new.tensors.keys() ^ new.versions.keys()
        none(VERSIONS, where, unversioned, "{} has no version")
        moved, other = set[str](), set[str]()
        for address, value in new.tensors.items():
            before = old.tensors.get(address)
            if before is None or before is value:
                continue
            if (before.shape, before.dtype) != (value.shape, value.dtype):
                other.add(f"{address} ({value.dtype} {tuple(value.shape)} for {before.dtype} {tuple(before.shape)})")
            if not _same(before, value):
                moved.add(address)
        none(rule, where, other, "{} is another tensor than before")
        stale = {a for a in moved if new.versions.get(a, 0) <= old.versions.get(a, 0)}
        none(VERSIONS, where, stale, "{} changed without; use state.changed()")
        infinite = {a for a in moved if new.tensors[a].is_floating_point() and not new.tensors[a].isfinite().all()}
        none(rule, where, infinite, "{} isn't finite")
        idle = {a for a in moved if self.governed(a) and not place.stage.active(a.split("/", 1)[1])}
        none(INACTIVE, where, idle, "{} changed")

    def governed(self, address: str) -> bool:
        """Whether an address is a parameter of a client kind's model, and so under the schedule."""
        return not address.startswith("table/") and address.split("/", 1)[0] in self.setup.clients.kinds

    def server(self, when: str, place: _Place, state: ServerState) -> ServerState:
        """The works that the method gives the server, and what it makes of their results."""
        source = self.setup.clients.server()
        with self.findings.attempt(SERVER, place.at(f"{when}()")):
            works = getattr(self.method, when)(state, place.round)
            for index, each in enumerate(works):
                where = place.at(f"{when}(), work {index + 1}")
                # a model of the server's own is not under the schedule
                stage = place.stage if each.kind in self.setup.clients.kinds else None
                work = restrict(each, stage) if stage else each
                if not self.described(work, where, stage, state):
                    continue
                task = Task(work, state.inputs(work), None, seeds.key(1, when, place.round, index))
                report = self.run(task, source, SERVER, where)
                if report is None:
                    continue
                self.repeated_server(task, report, where)
                self.trained(task, report, source, where)
                held = {a: t.clone() for a, t in state.tensors.items()}
                new = self.method.absorb(state, work, report.result)
                changed = _differing(held, state.tensors)
                self.findings.none(SERVER, where, changed, "absorb() changed {} in place")
                self.followed(place, where, state, new)
                state = new
        return state

    def repeated_server(self, task: Task, report: Report, where: str) -> None:
        """The same task of the server once more."""
        with self.findings.attempt(SEED, where):
            self.alike(SEED, report, self.node.run(task), where)

    def evaluation(self, kind: str, place: _Place, state: ServerState) -> None:
        """The model of a kind on the validation split."""
        where = place.at(f"evaluate() of {kind}")
        source = self.setup.clients.server()
        with self.findings.attempt(METRICS, where):
            work = self.method.evaluate(kind, "validation")
            # a model of the server's own is not under the schedule
            stage = place.stage if work.kind in self.setup.clients.kinds else None
            work = restrict(work, stage) if stage else work
            if not self.described(work, where, stage, state):
                return
            report = self.run(Task(work, state.inputs(work), None, 1), source, METRICS, where)
            if report is not None:
                metrics = report.result.metrics
                self.findings.expect(METRICS, where, bool(metrics), "it gives none")
                bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
                self.findings.expect(METRICS, where, not bad, f"{bad}" if bad else "")


def _after_edits(work: Work, module: nn.Module) -> set[str]:
    """Names of the model's parameters while the edits are applied."""
    own = {n for n, _ in module.named_parameters()}
    received = {i.name: torch.empty(i.shape, device="meta") for p in work.down for i in p.items if i.name not in own}
    for edit in work.edits:
        registry.get("edit", edit.name).apply(edit, module, received)
    return {n for n, _ in module.named_parameters()}
