"""Build the objects that a run, a profile or a sweep works with from a scenario."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, partial

import numpy as np
import torch

from edgefl import models, registry
from edgefl.arrays import Integers
from edgefl.cost.predict import Predictor
from edgefl.cost.scratch import ScratchTable
from edgefl.data import Federation, data_fingerprint, open_federation, revision_warnings
from edgefl.devices import Device, Fleet, Link
from edgefl.errors import DataError, MethodError, ScenarioError, UnknownName, suggestion
from edgefl.machine.kernel_scratch import kernels, probe
from edgefl.memo import cache_folder
from edgefl.methods import ClientFacts, Kind, Method, Setting
from edgefl.methods.fedcola.stacks import WORKING
from edgefl.methods.setting import tensors_of
from edgefl.models import adapters, dtypes, quantised
from edgefl.models.layers import attention_outputs
from edgefl.models.model import DTYPES, ModelDescription
from edgefl.planning.payload_options import with_codecs
from edgefl.planning.planner import Planner
from edgefl.planning.rules import check_works
from edgefl.planning.setup import Setup
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario, load
from edgefl.scenario.axes import without_compare
from edgefl.scenario.document import Document
from edgefl.scenario.overrides import blame
from edgefl.scenario.problems import collecting, raise_all
from edgefl.scenario.scenario import read_document
from edgefl.scenario.sections import SECTIONS
from edgefl.schedules import Schedule
from edgefl.setup.host_need import check_host, tell_time
from edgefl.setup.private_rounds import check_first_round, private_faults
from edgefl.training import Attack
from edgefl.training.pretraining import Pretraining, descriptions_of
from edgefl.work import Work
from edgefl.work.description import DTYPE_NAMES, digest
from edgefl.work.optimizer.gradient_trainer import wrong_step
from edgefl.work.optimizer.zeroth_order import without_gradients
from edgefl.work.private import private_fault
from edgefl.work.steps import says
from edgefl.work.sums import is_averaged
from edgefl.work.tasks import facts_for, like
from edgefl.work.torch_device import device_of

_MOST_OPEN = 8
"""Federations of this process that stay open, the oldest of which goes.

A choice, not measured: a sweep over seeds or data opens each once in turn; more would hold the data of all in memory.
"""
_federations: dict[tuple[str, int, int, str, str], Federation] = {}


def federation_of(scenario: Scenario, on_message: Callable[[str], None]) -> Federation:
    """The scenario's data, opened once for all scenarios that share them, and again if their files have changed.

    Warns of a plug-in's data set whose code changed without a new revision.
    """
    # the cache and the folders that relative paths are looked up in
    folders = f"{cache_folder()} {os.environ.get('EDGEFL_DATA')} {os.getcwd()} {registry.changes()}"
    made = digest(data_fingerprint(scenario.data))
    share = scenario.evaluation.clients
    key = (scenario.data.model_dump_json(), scenario.seed, scenario.model.tokens, f"{folders} {share}", made)
    if key not in _federations:
        while len(_federations) >= _MOST_OPEN:
            _federations.pop(next(iter(_federations)))
        whole = open_federation(scenario.data, seed=key[1], tokens=key[2], on_message=on_message)
        _federations[key] = whole.with_held_out(share, key[1])
        for line in revision_warnings(scenario.data, _federations[key]):
            warnings.warn(line, stacklevel=2)
    return _federations[key]


Given = str | os.PathLike[str] | Mapping[str, object] | Scenario
"""A scenario as commands take it: its file, the name of a shipped one, its content, or the object."""


def labels_of(given: Sequence[Given], loaded: Sequence[Scenario]) -> list[str]:
    """What tables call each of several scenarios: its name, or where two have the same name what was given for it."""
    names = Counter(scenario.name for scenario in loaded)
    return [
        each if isinstance(each, str) and names[scenario.name] > 1 else scenario.name
        for each, scenario in zip(given, loaded, strict=True)
    ]


def scenario_of(given: Given, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario that is given.  Raises ScenarioError."""
    if isinstance(given, Scenario):
        return load(given.to_data(), overrides) if overrides else given
    content = dict(given) if isinstance(given, Mapping) else given
    return load(content, overrides)  # type: ignore[arg-type]  # any path; load refuses other objects


def compose(scenario: Scenario, on_message: Callable[[str], None] = lambda _: None, *, trains: bool = True) -> Setup:
    """The set-up that determines a run: its method, schedule, data, fleet and options.

    ``on_message`` is called while data are built; ``trains`` is false if only costs are predicted.  Raises
    ScenarioError, with file and line, for a scenario that needs more memory than this machine has, data that can't be
    opened and sections that contradict each other, or DeviceError.  Warns of a run that takes long.
    """
    errors = list[ScenarioError]()
    with collecting(errors):
        setup = _compose(scenario, on_message, trains=trains)
    # other data take long to open
    raise_all(blame(errors, scenario._document, lambda document: _compose(_read_single(document)), ("data", "seed")))
    if trains:
        tell_time(scenario, setup)
    return setup


def _read_single(document: Document) -> Scenario:
    """The scenario of a document without what it compares."""
    return read_document(without_compare(document))


def _compose(scenario: Scenario, on_message: Callable[[str], None] = lambda _: None, *, trains: bool = False) -> Setup:
    check_host(scenario, trains=trains)
    check_sections([scenario])
    with errors_at(scenario, "data"):
        federation = federation_of(scenario, on_message)
    _check_held_out(scenario, federation)
    kinds = _kinds(scenario, federation)
    schedule = _schedule(scenario, blocks_of(kinds))
    kinds = _quantise_kinds(scenario, kinds, schedule)
    drawn = cache(lambda: Fleet.draw(scenario.fleet, len(federation.client_kind), scenario.seed))
    setting = _setting(scenario, federation, kinds, schedule, on_message, drawn)
    method = _method(scenario, setting)
    fleet, errors = drawn(), list[ScenarioError]()
    of_rounds = partial(_check_schedule, schedule=schedule), partial(_check_cohorts, schedule=schedule)
    with collecting(errors):
        _check_devices(scenario, method, fleet)
    for check in (_check_method, _check_relays, _check_payload, *of_rounds):
        with collecting(errors):
            check(scenario, method)
    raise_all(errors)
    setup = Setup(
        scenario.seed,
        method,
        schedule,
        federation,
        fleet,
        scenario.round,
        scenario.evaluation,
        scenario.training.measure,
        scenario.payload,
        scenario.stop,
        scenario.privacy,
    )
    raise_all([scenario.error(*fault) for fault in private_faults(scenario, setup, _first_works(method))])
    with errors_at(scenario, "privacy"):
        check_first_round(scenario, setup)
    return setup


def check_sections(scenarios: Sequence[Scenario]) -> None:
    """Raise ScenarioError for sections that the method or the schedule doesn't go with, before data are opened.

    Of several scenarios all such errors are raised together.
    """
    errors = list[ScenarioError]()
    for scenario in scenarios:
        found = list[ScenarioError]()
        with collecting(found), errors_at(scenario, "method"):
            for training in scenario.training.each:
                registry.get("method", scenario.method_name).check_training(scenario.method_options, training)
        with collecting(found), errors_at(scenario, "schedule"):
            _schedule(scenario, scenario.model.blocks).check(scenario.adapter_options, scenario.aggregation)
        errors += blame(found, scenario._document, lambda document: check_sections([_read_single(document)]))
    raise_all(errors)


@contextmanager
def errors_at(scenario: Scenario, *path: str) -> Iterator[None]:
    """Raise a DataError or MethodError as the ScenarioError at this path, with its file and line.

    A message may begin with the field that it is about: the path, or another (``schedule.ranks: ...``).
    """
    try:
        yield
    except (DataError, MethodError) as error:
        field, colon, message = str(error).partition(": ")
        named = tuple(field.split(".")) if colon else ()
        if named != path and not (len(named) > 1 and named[0] in SECTIONS and all(map(str.isidentifier, named))):
            named, message = path, str(error)
        raise scenario.error(named, message) from error


def _kinds(scenario: Scenario, federation: Federation) -> dict[str, Kind]:
    """The client kinds by name, each with the model of its clients."""
    kinds: dict[str, Kind] = {}
    adapter, sources = adapters.description(scenario.adapter_options), _adapter_weights(scenario)
    for name in federation.kinds:
        modalities, task = tuple(name.split("-")), federation.task(name)
        checkpointing = scenario.training.recomputed_blocks
        with errors_at(scenario, "model"):
            facts = facts_for(task, federation.facts_of(name))
            model = models.describe(scenario.model, modalities, like(task), facts, checkpointing=checkpointing)
        if adapter:
            model["adapter"] = adapter
            dtypes.under_adapter(model, scenario.adapter_options, given=scenario.model.dtype is not None)
        if scenario.training.precision == "float64":
            dtypes.in_float64(model)
        patterns, extras = federation.patterns(name), federation.extras(name)
        delivers = scenario.adapter_options.deliver_base == "first"
        factors = {tower: source for tower, source in sources.items() if tower in model["towers"]}
        kinds[name] = Kind(
            name, modalities, task, model, scenario.model.weights, patterns, extras, delivers, factors,
            scenario.model.vectors,
        )  # fmt: skip
    if adapter:
        with errors_at(scenario, "adapter"):
            plain = {name: models.blueprint(adapters.without(kind.model)) for name, kind in kinds.items()}
            adapters.check(plain, adapter, given=scenario.adapter_options.also is not None)
            for kind in kinds.values():
                adapters.check_trains(kind.name, models.blueprint(kind.model), adapter)
    return kinds


def _quantise_kinds(scenario: Scenario, kinds: dict[str, Kind], schedule: Schedule) -> dict[str, Kind]:
    """The client kinds with their frozen layers quantised, where towers ask for it."""
    encoders = scenario.model.encoders.items()
    asked = {name: to for name, options in encoders if (to := getattr(options, "quantize", None))}
    if not asked:
        return kinds
    if scenario.training.precision == "float64":
        field = ("model", next(iter(asked)), "quantize")
        raise scenario.error(field, "quantised layers compute in 32 or 16 bits: write training.precision: float32")
    played = [stage for stage in schedule.offered if stage.rounds]
    found: dict[str, Kind] = {}
    for name, kind in kinds.items():
        trainable = set(kind.trainable())

        def trains(parameter: str, trainable: set[str] = trainable) -> bool:
            return parameter in trainable and any(stage.is_active(parameter) for stage in played)

        with errors_at(scenario, "model"):
            model = quantised.describe(kind.model, models.blueprint(kind.model), asked, trains)
        found[name] = replace(kind, model=model)
    return found


def _adapter_weights(scenario: Scenario) -> Mapping[str, str]:
    """Folders of PEFT by tower.  Raises ScenarioError for another tower, or where it isn't said which."""
    weights, towers = getattr(scenario.adapter_options, "weights", None), [*scenario.model.towers]
    found = dict.fromkeys(towers, weights) if isinstance(weights, str) else weights or {}
    if isinstance(weights, str) and len(towers) != 1 or not found.keys() <= set(towers):
        raise scenario.error(
            ("adapter", "weights"),
            f"a folder of PEFT is of one tower: write {{MODALITY: DIR}}, with {' or '.join(towers) or 'a tower'}",
        )
    return found


def _setting(
    scenario: Scenario,
    federation: Federation,
    kinds: Mapping[str, Kind],
    schedule: Schedule,
    on_message: Callable[[str], None],
    drawn: Callable[[], Fleet],
) -> Setting:
    """What a method may know about the clients, the data and the scenario."""

    def each_client() -> Iterator[ClientFacts]:
        fleet = drawn()
        clients = zip(federation.client_kind.tolist(), federation.client_samples.tolist(), strict=True)
        for index, (kind, samples) in enumerate(clients):
            yield ClientFacts(federation.kinds[kind], index, samples, fleet.device(index), fleet.link(index))

    clients = dict(zip(kinds, np.bincount(federation.client_kind, minlength=len(kinds)).tolist(), strict=True))
    return Setting(
        kinds,
        scenario.training.over(sum(stage.rounds for stage in schedule.stages)),
        scenario.evaluation.batch,
        scenario.evaluation.pairs,
        scenario.model,
        federation.facts,
        federation.server_samples.get("public", {}),
        answers=federation.answers,
        fold=scenario.evaluation.fold,
        aggregation=scenario.aggregation,
        missing=scenario.evaluation.missing or {},
        pretrained=pretraining_of(scenario, federation, on_message),
        token_ids=lambda: federation.tokenizer.get_vocab(),
        averages_products=schedule.averages == "products",
        clients=clients,
        cohort=scenario.round.most_updates(clients),
        each_client=each_client,
    )


def _method(scenario: Scenario, setting: Setting) -> Method:
    """The scenario's method.  Raises ScenarioError if it can't describe a client's work in the first round."""
    with errors_at(scenario, "method"):
        method: Method = registry.get("method", scenario.method_name)(scenario.method_options, setting)
        works = _first_works(method)
        steps = {name for work in works for pass_ in work.passes for name in pass_.steps}
        if unknown := sorted(steps - {*registry.names("step")}):
            told = UnknownName("step", unknown[0], registry.names("step"))
            raise MethodError(f"{scenario.method_name} has a pass with an {told}")
    if scenario.training.precision == "float64":
        for item in (item for work in works for payload in (*work.down, *work.up) for item in payload.items):
            if item.dtype in ("float32", "float16", "bfloat16"):
                raise scenario.error(
                    ("training", "precision"),
                    f"{scenario.method_name} sends {item.name} in {item.dtype}, so it can't train in float64: write "
                    "float32",
                )
    _check_trained(scenario, works)
    if scenario.training.loss_chunk:
        _check_chunks(scenario, setting, works)
    if scenario.training.note_gradients:
        _check_noted(scenario, setting)
    if scenario.training.private is not None:
        faults = map(private_fault, works) if works else ["no client trains in the first round: take method: fedavg"]
        if fault := next(filter(None, faults), ""):
            raise scenario.error(("training", "private"), fault)
    return method


def _check_trained(scenario: Scenario, works: Sequence[Work]) -> None:
    """Raise ScenarioError for parameters in float16 that train, and for a dtype that the optimizer lacks on the CPU."""
    for work in works:
        specs, trainable = tensors_of(work.model)[0], set(work.trainable)
        named = {DTYPES[spec.dtype]: name for name, spec in specs.items() if name in trainable}
        trained = {dtype: name for dtype, name in named.items() if dtype not in (torch.float32, torch.float64)}
        if (name := trained.get(torch.float16)) and not without_gradients(work):
            tower = name.partition(".")[0]
            raise scenario.error(
                ("model", tower, "dtype") if tower in scenario.model.towers or tower == "multiway" else ("model",),
                f"{name} trains in float16, whose small gradients become 0, and no loss is scaled for gradients that "
                "are float16 themselves: write bfloat16, or train an adapter in float32 (adapter: lora)",
            )
        for dtype in trained if not without_gradients(work) else ():
            if why := wrong_step(work, dtype):
                raise scenario.error(
                    ("training", "implementation") if "implementation" in work.optimizer else ("training",),
                    f"{work.optimizer['name']} {why} in {DTYPE_NAMES[dtype]} on a CPU with torch "
                    f"{torch.__version__}: write another implementation (for-loop, foreach) or optimizer, or the "
                    "model's dtype: float32",
                )


def _check_chunks(scenario: Scenario, setting: Setting, works: Sequence[Work]) -> None:
    """Raise ScenarioError for a next-token loss that its step computes as a whole, or if there is no other loss."""
    passes = [(work.kind, p) for work in works for p in work.passes if p.train]
    whole = [
        (k, p.step) for k, p in passes if "chunk" not in p.args or not says(registry.get("step", p.step), "chunks")
    ]
    wrong = [each for each in whole if len(whole) == len(passes) or setting.kinds[each[0]].like == "next-token"]
    for kind, step in wrong:
        raise scenario.error(
            ("training", "loss_chunk"),
            f"{kind} clients train by {registry.describe_part('step', step)}, whose loss is computed as a whole: "
            "chunks of tokens are for the task next-token and its step; leave loss_chunk out",
        )


def _check_noted(scenario: Scenario, setting: Setting) -> None:
    """Raise ScenarioError for a tower of which no block trains an attention output that is known by its name."""
    for kind in setting.kinds.values():
        towers = kind.model["towers"]
        noted = {block.partition(".")[0] for block in attention_outputs(towers, kind.trainable()).values()}
        for tower in (tower for tower in towers if tower not in noted):
            raise scenario.error(
                ("training", "note_gradients"),
                f"{kind.name} clients train no attention output of the blocks of {tower} "
                f"({towers[tower].get('tower', tower)}); allowed: {WORKING}; without an adapter, which freezes them",
            )


def _first_works(method: Method) -> list[Work]:
    """The works of the first round, of each kind that takes part and each of its variants."""
    kinds = [kind for kind in method.setting.kinds if method.participates(kind, 1)]
    return [method.client_work(kind, 1, variant) for kind in kinds for variant in method.variants[kind]]


def blocks_of(kinds: Mapping[str, Kind]) -> dict[str, int]:
    """Blocks of each tower of the kinds' models at full depth."""
    return {tower: blocks for kind in kinds.values() for tower, blocks in models.blocks(kind.model).items()}


def _check_method(scenario: Scenario, method: Method) -> None:
    """Raise ScenarioError for an aggregation rule or a round policy that the method doesn't support."""
    if not (scenario.aggregation.plain or _averages(method)):
        raise scenario.error(
            ("aggregation",),
            f"{scenario.method_name} has no models to average, since clients keep theirs: leave out everything but "
            "non_finite",
        )
    attack = scenario.fleet.failures.attack
    if attack is not None and _only_sends(attack.name) and not _averages(method, sent=True):
        why = "sends no parameters" if _averages(method) else "has no models to average, since clients keep theirs"
        raise scenario.error(
            ("fleet", "failures", "attack", "name"),
            f"{scenario.method_name} {why}, so {attack.name} changes nothing; write name: label-flip",
        )
    if method.together and registry.get("round policy", scenario.round.policy_name).at_once:
        raise scenario.error(
            ("round", "policy"),
            f"{scenario.method_name}: {method.together}, but {scenario.round.policy_name} aggregates each update "
            "alone; write policy: buffered",
        )


def _check_devices(scenario: Scenario, method: Method, fleet: Fleet) -> None:
    """Raise ScenarioError for a key of ``training.by`` that is no kind and names no device of the fleet."""
    names = [device.name for device in fleet.devices]
    for key in scenario.training.devices(method.setting.kinds):
        if not any(fnmatchcase(name, key) for name in names):
            known = [*method.setting.kinds, *names]
            message = f"no kind of client and no device of the fleet is {key!r}{suggestion(key, known)}"
            raise scenario.error(("training", "by", key), f"{message}; there are: {', '.join(known)}")


def _check_relays(scenario: Scenario, method: Method) -> None:
    """Raise ScenarioError for relays under a method or a schedule whose server needs single updates."""
    if scenario.fleet.relays is None:
        return
    sent = [item for work in _first_works(method) for payload in work.up for item in payload.items]
    tables = sorted({item.source.removeprefix("table/") for item in sent if not is_averaged(item.source)})
    why = ""
    if method.setting.averages_products:
        why = f"{scenario.schedule_name} multiplies the factors of each update"
    elif not method.streams:
        why = f"{scenario.method_name} reads each update"
    elif tables:
        why = f"{scenario.method_name} reads the tables of each update ({tables[0]})"
    if why:
        raise scenario.error(
            ("fleet", "relays"),
            f"{why}, and a relay sends the sum of its clients' alone: take a method that averages, such as fedavg, "
            "fedprox or fednova, or leave out fleet.relays",
        )


def _only_sends(attack: str) -> bool:
    """Whether an attack trains on the client's own data, and only sends something else."""
    return bool(registry.get("attack", attack).source is Attack.source)


def _check_held_out(scenario: Scenario, federation: Federation) -> None:
    """Raise ScenarioError if no client has enough samples to hold one out (``evaluation.clients``)."""
    if federation.held_out is not None and not federation.held_out.client_samples.any():
        most = int(federation.client_samples.max(initial=0))
        raise scenario.error(
            ("evaluation", "clients"),
            f"{scenario.evaluation.clients:.3g} holds nothing out: no client has more than {most} samples; give a "
            "larger share, or clients more samples",
        )


def _check_payload(scenario: Scenario, method: Method) -> None:
    """Raise ScenarioError for an upload that can't be encoded with the scenario's ``payload.up``."""
    if (up := scenario.payload.codecs()[1]) is not None and up.part.needs_base:
        with errors_at(scenario, "payload", "up"):
            for kind in method.setting.kinds:
                for variant in method.variants[kind]:
                    with_codecs(method.client_work(kind, 1, variant).form, scenario.payload, (), method)


def _check_schedule(scenario: Scenario, method: Method, schedule: Schedule) -> None:
    """Raise ScenarioError for rounds that the method can't run, stages that its models can't be split into, and works
    that would train nonsense."""
    with errors_at(scenario, "method"):
        method.check_rounds(schedule.rounds)
    with errors_at(scenario, "schedule"):
        check_works(method, schedule)


def _check_cohorts(scenario: Scenario, method: Method, schedule: Schedule) -> None:
    """Raise ScenarioError for a policy or a selection that can't draw the cohort of a round as the method asks."""
    options = scenario.round
    overlaps = registry.get("round policy", options.policy_name).overlapping
    ranks = registry.get("selection", options.selection_name).needs_loss
    if not method.has_other_draws or not (overlaps or ranks):
        return  # without a look at every round, of which there may be very many
    for round in range(1, schedule.rounds + 1):
        home = [k for k in method.setting.kinds if method.is_drawn(k, round) and not method.participates(k, round)]
        asks = f"sends {' and '.join(home)} clients of its cohort home" if home else "asks all clients"
        asks = f"in round {round} {scenario.method_name} {asks}"
        if overlaps and (home or method.draws_all(round)):
            why = f"{asks}, but {options.policy_name} fills one place after the other; write policy: synchronous"
            raise scenario.error(("round", "policy"), why)
        if ranks and home:
            why = f"{asks}, of which {options.selection_name} learns no loss; write selection: random"
            raise scenario.error(("round", "selection"), why)


def _averages(method: Method, *, sent: bool = False) -> bool:
    """Whether any client changes (or itself sends) parameters, which the server averages, and not only tables."""
    works = _first_works(method)
    changed = Method.changed_addresses if sent else type(method).changed_addresses
    return any(is_averaged(address) for work in works for address in changed(method, work))


def pretraining_of(scenario: Scenario, federation: Federation, on_message: Callable[[str], None]) -> Pretraining | None:
    """The pre-training of the scenario's towers, which trains on first use; None if no tower is pre-trained.

    Raises ScenarioError for a tower that can't be pre-trained with these options.
    """
    if not scenario.pretrain.towers:
        return None

    def describe(modality: str) -> ModelDescription:
        facts = federation.public_facts
        return models.describe(scenario.model, (modality,), "classify", facts)

    with errors_at(scenario, "pretrain"):
        described = descriptions_of(scenario.pretrain, describe, scenario.model.towers)
        pretraining = Pretraining(
            scenario.pretrain,
            described,
            federation,
            scenario.seed,
            device_of("cpu" if scenario.training.mode == "none" else scenario.executor.here),
            cache_folder(),
            on_message,
        )
        if not federation.is_declared_only:
            pretraining.check()
    return pretraining


def has_same_results(first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """Whether two resolved scenarios give the same results: the executor only decides where a run trains."""
    a, b = ({name: part for name, part in each.items() if name != "executor"} for each in (first, second))
    return a == b


def at_most(scenarios: Iterable[Scenario]) -> list[str]:
    """The names of schedules that may end their stages early, so that costs are at most those that are predicted."""
    return [*dict.fromkeys(each.schedule_name for each in scenarios if _schedule(each, each.model.blocks).adapts)]


def _schedule(scenario: Scenario, blocks: Mapping[str, int]) -> Schedule:
    """The scenario's schedule of towers with these blocks."""
    schedule: Schedule = registry.get("schedule", scenario.schedule_name)(scenario.schedule_options, blocks)
    return schedule


def predictor_of(scenario: Scenario) -> Predictor:
    """A memoised predictor for the type of device that the scenario trains on, even if this machine lacks it.

    What kernels take is measured on this machine; for a GPU that it lacks it is assumed.  Raises MethodError if states
    are to be offloaded from a CPU.
    """
    name = scenario.executor.device_type
    device = device_of("auto").type if name == "auto" else name
    if scenario.training.offload_states and device == "cpu":
        raise MethodError(
            "training.offload_states: a CPU computes in its host's memory, so that there is nowhere to offload to; set "
            "executor.device: cuda, or leave it out"
        )
    return predictor_for(device)


def predictor_for(device: str) -> Predictor:
    """A memoised predictor for a type of device, with the table of what its kernels take."""
    return Predictor(cache_folder() / "costs", device, ScratchTable(kernels(device), partial(probe, device=device)))


def planner_of(scenario: Scenario, on_progress: OnProgress = silent) -> Planner:
    """A planner of this scenario's works; ``on_progress`` is called while data are built."""
    return Planner(compose(scenario, messages(on_progress), trains=False), predictor_of(scenario))


def commonest_device(fleet: Fleet) -> Device:
    """The device that most clients have; of equally common ones the slowest."""
    return fleet.devices[_commonest(fleet.device_index, [device.flops_per_second for device in fleet.devices])]


def commonest_link(fleet: Fleet) -> Link:
    """The link that most clients have; of equally common ones the slowest to upload over."""
    return fleet.links[_commonest(fleet.link_index, [link.upload_bits_per_second for link in fleet.links])]


def _commonest(index: Integers, rates: Sequence[float]) -> int:
    """The number that stands most often in ``index``, of equally common ones that with the lowest rate."""
    counts = np.bincount(index, minlength=len(rates)).tolist()
    return max(range(len(rates)), key=lambda number: (counts[number], -rates[number]))
