"""Base class of methods: works of clients and server, and the aggregation of updates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from edgefl import models, seeds
from edgefl.errors import MethodError
from edgefl.methods.aggregation import Cohort
from edgefl.methods.aggregation.combine import Mix, parts_of, with_current_statistics
from edgefl.methods.aggregation.products import average_products
from edgefl.methods.aggregation.server_optimizers import server_step
from edgefl.methods.aggregation.updates import Updates
from edgefl.methods.checked_answers import check_answers
from edgefl.methods.setting import ClientFacts, DeviceVariant, Setting
from edgefl.methods.state import ServerState
from edgefl.models import adapters, peft_folder, quantised
from edgefl.models.word_vectors import load_vectors
from edgefl.registry.part_fields import Fields
from edgefl.work import Address, Item, Pass, Payload, Update, Work
from edgefl.work.description import HELD_OUT, StepArgs
from edgefl.work.private import with_private_gradients
from edgefl.work.slices import add
from edgefl.work.sums import exact, is_averaged
from edgefl.work.tasks import task_named
from edgefl.work.training_options import TrainingOptions


class Method:
    """A method of federated learning.  It never names a schedule: works are written for the full depth.

    Subclass, give ``Options``, and override what differs; the defaults are FedAvg per client kind.  A method object
    must not remember anything between calls: all that outlives a round is in the state.

    For a profile and for ``training: none``, ``initial``, ``before``, ``after`` and ``aggregate`` are also called with
    tensors that have shapes and no values (``tensor.is_meta``).  Where a decision depends on a value, take the decision
    of a full round for such tensors.
    """

    class Options(Fields):
        """Fields of the scenario's ``method`` section besides ``name``."""

        name: str = ""
        personal: tuple[str, ...] = Field(
            (),
            description="parts of the model that stay on each client: embedding, norm, rep, head or pooler of every "
            "tower, or the beginning of a parameter's name (image.blocks.3)",
        )

    options: Any
    """The options of this run."""
    setting: Setting
    """What the method knows of the scenario."""
    summary: ClassVar[str] = ""
    """One line for ``edgefl parts``."""
    paper: ClassVar[str] = ""
    """Where it was published: authors and year, or the paper's name."""
    needs: ClassVar[Mapping[str, object]] = {}
    """Sections of a scenario that the method requires; ``edgefl.testing`` adds them to its federation."""
    tasks: ClassVar[tuple[str, ...]] = ()
    """Tasks of clients that it can train for, else MethodError; () for every registered one."""
    plain_sgd: ClassVar[bool] = False
    """Whether clients must train by SGD (as ``needs`` then says), with one rate and no momentum or clipping; else
    MethodError."""

    streams: ClassVar[bool] = True
    """Whether ``aggregate`` reads parameters by ``combine`` with ``update_weight`` alone.

    Under ``round.policy: synchronous`` and ``aggregation.rule: mean`` each update is then added up as it arrives, and
    memory doesn't grow with the cohort.  In such updates a parameter raises MethodError where it is read; tables,
    samples, losses and metrics are there, and ``combine`` takes no ``weight`` of its own.  A class with an
    ``aggregate`` of its own, which doesn't say so, gets all updates at once, those that the memory doesn't hold through
    memory maps.
    """

    scores_own_models: ClassVar[bool] = False
    """Whether every client has a whole model of its own, and the server none that is worth scoring.

    An evaluation then scores the model of each client on the server's samples.  Metrics are means over the clients of
    a kind, and ``NAME_deviation`` the standard deviation over them.
    """
    varies: ClassVar[bool] = False
    """Whether clients of one kind may do different work: true for a class that overrides ``variant``."""
    has_other_draws: ClassVar[bool] = False
    """Whether a round's cohort may be another than the scenario's: true for a class that overrides ``is_drawn`` or
    ``draws_all``."""

    @property
    def adds_up(self) -> bool:
        """Whether updates are added up as they land: ``streams``, ``aggregation.rule: mean``, and not ``flexlora``."""
        return self.streams and self.setting.aggregation.adds_up and not self.setting.averages_products

    @property
    def together(self) -> str:
        """Why a round's updates can't be aggregated one by one, as a clause for a message; "" if they can.

        Where it isn't empty, policies that hand over updates one by one are refused.
        """
        return ""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "aggregate" in vars(cls) and "streams" not in vars(cls):
            cls.streams = False
        if cls.plain_sgd:
            own = cast(Mapping[str, object], cls.needs.get("training", {}))
            cls.needs = {**cls.needs, "training": {"optimizer": "sgd", **own}}
        cls.varies = cls.variant is not Method.variant
        cls.has_other_draws = cls.is_drawn is not Method.is_drawn or cls.draws_all is not Method.draws_all
        check_answers(cls)

    def __init__(self, options: Any, setting: Setting):
        self.options, self.setting = options, setting
        self._of_devices = dict[tuple[str, ...], Method]()
        for kind in setting.kinds.values():
            if self.tasks and kind.task not in self.tasks:
                name = options.name or type(self).__name__
                raise MethodError(f"{name} can't train {kind.name} clients for {kind.task}: set data.tasks")
        for training in setting.training.each:
            self.check_training(options, training)
        for function in ("work", "evaluate_client") if self.varies else ():
            if len(inspect.signature(getattr(self, function)).parameters) < 3:
                name = type(self).__name__
                raise MethodError(f"{name} has a variant(), so its {function}() takes (kind, round, variant)")

    def initial(self, seed: int) -> ServerState:
        """The first state, with every address that a work names.

        Default: models, random or pre-trained; tensors of the same name and shape start equal in every kind.
        """
        common: dict[str, Tensor] = dict(self.setting.pretrained()) if self.setting.pretrained else {}
        tensors: dict[Address, Tensor] = {}
        for kind in self.setting.kinds.values():
            described = quantised.without(kind.model)
            with seeds.seeding_globals(seeds.key(seed, "initial", len(kind.modalities))):
                module = models.build(described)
            models.load_weights(module, described, kind.weights)
            for tower, source in kind.vectors.items():
                if tower in described["towers"]:
                    load_vectors(module.get_submodule(f"{tower}.embedding"), source, self.setting.token_ids)
            read: set[str] = set()
            for tower, source in kind.adapter_weights.items():
                for name in peft_folder.load(module, described, tower, source):
                    common.pop(name, None)  # pre-trained
                    read.add(name)
            own: dict[str, Tensor] = {}
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                shared = common.setdefault(name, value.detach())
                if shared.dtype != value.dtype:  # pre-trained in float32
                    shared = common[name] = shared.to(value.dtype)
                own[name] = shared if shared.shape == value.shape else value.detach()
            if adapter := kind.model.get("adapter"):
                follow = adapters.first_values(module, own, adapter)
                own |= {name: value for name, value in follow.items() if name not in read}
            if kind.model.get("quantize"):
                module.load_state_dict(own, strict=False, assign=True)
                quantised.quantise(module, kind.model)
                own = {n: t.detach() for n, t in (*module.named_parameters(), *module.named_buffers())}
            tensors |= {f"{kind.name}/{name}": value for name, value in own.items()}
        return ServerState.from_tensors(tensors)

    def at_start(self, seed: int) -> ServerState:
        """``initial`` with what clients lack at version 1 (``adapter.deliver_base: first``): so they receive it."""
        state = self.initial(seed)
        kinds = (kind for kind in self.setting.kinds.values() if kind.delivers_base)
        later = {f"{kind.name}/{name}" for kind in kinds for name in kind.fixed_parameters()}
        return ServerState(state.tensors, {a: 1 if a in later else v for a, v in state.versions.items()})

    @classmethod
    def check_training(cls, options: Any, training: TrainingOptions) -> None:
        """Raises MethodError for a section ``training`` that clients can't follow; asked before data are opened."""
        if not cls.plain_sgd:
            return
        name = options.name or cls.__name__
        if training.optimizer_name != "sgd" or training.momentum or training.rates:
            raise MethodError(
                f"{name} counts steps of plain SGD: set training.optimizer: sgd, and leave momentum and rates out"
            )
        if training.clip is not None:
            raise MethodError(f"{name} counts steps of plain SGD: leave training.clip out, which shortens steps")
        if training.lr_decay_per != "round":
            raise MethodError(
                f"{name} counts steps of one length in a round: set training.lr_decay_per: round, not "
                f"{training.lr_decay_per}"
            )

    def check_rounds(self, rounds: int) -> None:
        """Raises MethodError if the options name a round after the last one, ``rounds``."""

    def participates(self, kind: str, round: int) -> bool:
        """Whether clients of this kind take part in this round, if they are drawn."""
        return True

    def is_drawn(self, kind: str, round: int) -> bool:
        """Whether this round's cohort is drawn from clients of this kind too: by default, if they take part.

        Drawn clients of a kind that doesn't take part fill places of the cohort and are sent home, without cost.
        """
        return self.participates(kind, round)

    def draws_all(self, round: int) -> bool:
        """Whether all clients that may take part in this round do, whatever ``round.cohort`` says."""
        return False

    def variant(self, client: ClientFacts) -> Hashable:
        """Which of its kind's works a client does: a small hashable value, equal for clients with equal works.

        Default: None, all clients of a kind do the same, and nobody asks.  A class that overrides it is asked once for
        every client when a run is set up, and its ``work`` and ``evaluate_client`` take the variant after the round.
        Works are planned and priced once for each variant.  Devices are those of the scenario's fleet, in a sweep of
        other fleets and an emulation too.
        """
        return None

    @property
    def variants(self) -> Mapping[str, tuple[Hashable, ...]]:
        """The variants of each kind's clients, in the order of their first clients: ``(None,)`` if all are alike."""
        return self._variants[0]

    @property
    def client_variant(self) -> NDArray[np.int32] | None:
        """Index of each client's variant in ``variants`` of its kind, `[clients]`; None if all are alike."""
        return self._variants[1]

    def variant_of(self, kind: str, client: int) -> Hashable:
        """The variant of a client of this kind."""
        index = self.client_variant
        return None if index is None else self.variants[kind][int(index[client])]

    @cached_property
    def _variants(self) -> tuple[Mapping[str, tuple[Hashable, ...]], NDArray[np.int32] | None]:
        devices = self.setting.training.devices(self.setting.kinds)
        if not self.varies and not devices:
            return dict.fromkeys(self.setting.kinds, (None,)), None

        @cache
        def keys_of(device: str) -> tuple[str, ...]:
            return tuple(key for key in devices if fnmatchcase(device, key))

        def variant(client: ClientFacts) -> Hashable:
            own = self.variant(client) if self.varies else None
            return DeviceVariant(keys_of(client.device.name), own) if devices else own

        found: dict[str, dict[Hashable, int]] = {kind: {} for kind in self.setting.kinds}
        each = self.setting.each_client() if self.setting.each_client is not None else ()
        index = [found[c.kind].setdefault(variant(c), len(found[c.kind])) for c in each]
        return {kind: tuple(variants) for kind, variants in found.items()}, np.array(index, np.int32)

    def method_of(self, variant: Hashable) -> tuple[Method, Hashable]:
        """This method with the training of a variant's devices, and the method's own variant."""
        if not isinstance(variant, DeviceVariant):
            return self, variant
        if variant.keys not in self._of_devices:
            training = self.setting.training.of_devices(variant.keys, self.setting.kinds)
            self._of_devices[variant.keys] = type(self)(self.options, replace(self.setting, training=training))
        return self._of_devices[variant.keys], variant.own

    def work(self, kind: str, round: int) -> Work:
        """A client's work at full depth: ``work(kind, round, variant)`` in a class that overrides ``variant``.

        Default: its whole model down and up, and for each local epoch one pass per pattern.
        """
        described, training = self.setting.kinds[kind], self.setting.training.of(kind)
        step = task_named(described.task).step

        def args(pattern: str) -> StepArgs:
            fields: StepArgs = self.requested_fields(kind, pattern) if described.like != "retrieve" else {}
            return {**fields, **self.mask(kind, pattern), **self.chunk(kind)}

        passes = tuple(
            Pass(step, "private", (pattern,), training.batch_of(pattern), True, args(pattern))
            for pattern in self.trained_patterns(kind)
        )
        model = self.model_payload(kind)
        return Work(
            kind,
            described.model,
            described.trainable(),
            training.repeat_passes(passes),
            (model,),
            (model,),
            optimizer=training.settings(),
            precision=training.precision,
            attention=training.attention,
            scalars=training.scalars_of(round, described.pattern),
        )

    def client_work(self, kind: str, round: int, variant: Hashable = None) -> Work:
        """``work`` of a variant, with personal parts kept on the client, and without what nobody trains on the way up.

        It is what runs and is priced, and isn't to be overridden.  Raises MethodError for a part that no kind has.
        """
        if isinstance(variant, DeviceVariant):
            method, own = self.method_of(variant)
            return method.client_work(kind, round, own)
        asked: Callable[..., Work] = self.work
        work = asked(kind, round, variant) if self.varies else asked(kind, round)
        if self.setting.training.note_gradients:
            work = replace(work, optimizer={**work.optimizer, "note_gradients": True})
        if (private := self.setting.training.private) is not None:
            work = with_private_gradients(work, private)
        personal = self.options.personal
        if self.setting.kinds[kind].fixed_parameters():
            work = replace(work, up=tuple(payload.only(lambda item: not item.fixed) for payload in work.up))
        if personal:
            parameters = {name for each in self.setting.kinds.values() for name in each.parameters()}
            adapters.check_parts("personal", personal, parameters)
        return keep_personal(work, personal) if personal else work

    def trained_patterns(self, kind: str) -> tuple[str, ...]:
        """The modality patterns that clients of this kind train on; retrieval needs complete pairs."""
        described = self.setting.kinds[kind]
        if described.like != "classify" or self.setting.training.missing == "ignore":
            return (described.pattern,)
        return described.patterns

    def mask(self, kind: str, pattern: str) -> StepArgs:
        """Step arguments for a modality that samples of this pattern lack; empty for zeros, the default."""
        described = self.setting.kinds[kind]
        # a multiway model has both modalities, of which a single-modality client's samples lack one
        lacks = "-" not in pattern and ("-" in described.pattern or described.model["name"] == "multiway")
        return {"mask": "random"} if lacks and self.setting.training.missing == "random" else {}

    def chunk(self, kind: str) -> StepArgs:
        """Step arguments for a loss in chunks of tokens; empty without ``training.loss_chunk``, and for other tasks."""
        chunk = self.setting.training.loss_chunk
        return {"chunk": chunk} if chunk and self.setting.kinds[kind].like == "next-token" else {}

    def requested_fields(self, kind: str, pattern: str = "") -> StepArgs:
        """Pass arguments that request the kind's extra fields, with the modalities (all, or a pattern's) and label."""
        described = self.setting.kinds[kind]
        modalities = pattern.split("-") if pattern else described.modalities
        return {"fields": [*modalities, "label", *described.extras]} if described.extras else {}

    def model_payload(self, kind: str, source: str = "") -> Payload:
        """The whole model of a client kind, at the addresses ``<source><kind>/<parameter>``."""
        payload = self.setting.kinds[kind].payload
        items = (replace(item, source=f"{source}{item.source}") for item in payload.items) if source else ()
        return Payload("model", tuple(items)) if source else payload

    def like_model(self, kind: str, name: str, source: str = "") -> Payload:
        """Tensors like a kind's parameters, ``<name>.<parameter>``, at the addresses ``<source><kind>/<parameter>``.

        ``source`` is ``table/<name>/`` unless given; with ``/`` they begin as the model's own parameters.  Each follows
        its parameter through stages, widths and versions, travels where it trains, and is zeros while the server has
        none.
        """
        parameters, where = self.setting.kinds[kind].parameters(), f"{source or f'table/{name}/'}{kind}".lstrip("/")
        trained = {n: parameters[n] for n in self.setting.kinds[kind].trainable()}
        items = (Item(f"{name}.{n}", s.shape, s.dtype, f"{where}/{n}", like=n) for n, s in trained.items())
        return Payload(name, tuple(items), follows="trained")

    def with_own_tensors(self, work: Work, name: str, source: str = "") -> Work:
        """The work of a client that keeps tensors like its parameters, ``like_model``'s of this name."""
        own = self.like_model(work.kind, name, source)
        return replace(work, down=(*work.down, own), keep=(*work.keep, *own.names))

    def before(self, state: ServerState, round: int) -> Sequence[Work]:
        """Works of the server before clients are drawn."""
        return ()

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """Works of the server after updates are aggregated."""
        return ()

    def absorb(self, state: ServerState, work: Work, result: Update) -> ServerState:
        """The state after a server work: the tensors that it sends up replace those at their addresses."""
        sent = {i.source: result.payloads[p.name][i.name] for p in work.up for i in p.items}
        old = {a: state.tensors.get(a, value) for a, value in sent.items()}
        return state.with_tensors({a: value.to(old[a].dtype) for a, value in sent.items()})

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """The next state.  Pure, and independent of the order of ``updates``.  Default: FedAvg per client kind."""
        return state.with_tensors(self.combine(state, updates, lambda address, cohort: {address: 1.0}))

    def changed_addresses(self, work: Work) -> Collection[Address]:
        """Addresses that the server changes once it has the update of ``work``: by default those that it sends up."""
        return {item.source for payload in work.up for item in payload.items}

    def rebuild(self, update: Update) -> Update:
        """What ``combine`` averages of an update: by default itself.

        For clients that send something else, from which the server makes parameters: values may be made when they are
        read.  It is also called before an update arrives, when ``work`` and ``base`` alone can be read.
        """
        return update

    def update_weight(self, update: Update) -> float:
        """The weight of an update in means of parameters, before normalising: by default its number of samples."""
        return update.weight

    def combine(
        self,
        state: ServerState,
        updates: Sequence[Update],
        mix: Mix,
        *,
        weight: Callable[[Update], float] | None = None,
        among: str = "",
    ) -> dict[Address, Tensor]:
        """New values of the parameters that change, by the scenario's ``aggregation`` section; no method's tables.

        The value at address a becomes ``w_a + sum over b of mix(a)[b] * D_b``: w_a is the server's, and D_b the mean of
        the clients' changes at address b, weighted by ``weight(update)``, by default ``update_weight``.  ``mix(address,
        cohort)`` says from which addresses the changes come.  ``{address: 1.0}`` is FedAvg.  It is asked for every
        parameter of the server's, also for those of kinds that sent nothing in this round: an address b that no update
        sent is left out, and ``cohort`` lacks it.  Coefficients that add up to 1 give a weighted mean; if they add up
        to less, the rest is the old value.  In place of an address b, ``Rows(b, taken, into)`` relates rows ``taken``
        (start, stop) of b to rows ``into`` of a, as FedCola does between a layer of query, key and value and three
        layers.

        A policy's weight factor multiplies a client's part after the weights are normalised.  The aggregation rule,
        clipping, compensation and the server's optimizer come from the scenario; the optimizer's state is included.
        Buffers are statistics: they are mixed by share from the server's current value, whatever an update began with,
        and no optimizer steps them.  ``among`` limits this to addresses with that prefix.
        """

        def mix_among(address: Address, cohort: Cohort) -> Mapping[Address, float]:
            return mix(address, cohort) if address.startswith(among) else {}

        parameters = {a: t for a, t in state.tensors.items() if is_averaged(a)}
        weigh, options = weight or self.update_weight, self.setting.aggregation
        buffers = self.setting.buffers
        updates = Updates(map(self.rebuild, updates), Updates(updates).mean)
        if updates.mean is None:  # else they are a whole cohort's, which began with the current values
            updates = with_current_statistics(parameters, updates, buffers)
        if self.setting.averages_products:
            return average_products(state.tensors, parameters, updates, mix_among, weigh, buffers, options)
        parts = parts_of(parameters, *updates.deltas(parameters, weigh, options), mix_among, buffers)
        return server_step(state.tensors, parts, buffers, options)

    def export(self, state: ServerState, kind: str) -> Mapping[str, Tensor]:
        """Values of a kind's model, by parameter, that a finished run's ``model(kind)`` has instead of the state's own.

        A method whose clients train adapters merges them here; the best weights are exported too.  Default: none.
        """
        return {}

    def exported_tensors(self, state: ServerState) -> dict[Address, Tensor]:
        """What a finished run writes: the state's tensors, and ``export/<kind>/<parameter>``.

        Raises MethodError if an exported value belongs to no tensor of its model, or has another shape.
        """
        values = {
            (kind, name): value for kind in self.setting.kinds for name, value in self.export(state, kind).items()
        }
        for (kind, name), value in values.items():
            specs = self.setting.kinds[kind].parameters()
            if name not in specs or specs[name].shape != tuple(value.shape):
                expected = f"of shape {specs[name].shape}" if name in specs else "in no model of this kind"
                raise MethodError(f"export({kind!r}) gives {name!r} of shape {tuple(value.shape)}, which is {expected}")
        return {**state.tensors, **{f"export/{kind}/{name}": value for (kind, name), value in values.items()}}

    def sums(
        self, state: ServerState, updates: Sequence[Update], payload: str, weight: Callable[[Update], float]
    ) -> dict[Address, Tensor]:
        """``sum_i weight_i x_i`` over the updates that sent an address in this payload, in the address's full shape.

        x_i is the change of a parameter, and the value of any other tensor.  A policy's weight factor multiplies the
        weight.  Slices are added at their place.  No rule of ``aggregation`` applies.  Independent of the order of
        updates.
        """
        sums: dict[Address, Tensor] = {}
        for update in sorted(updates, key=lambda update: update.client):
            factor = weight(update) * update.weight_factor
            for item in (item for p in update.work.up if p.name == payload for item in p.items):
                value = update.payloads[payload][item.name]
                if not item.is_beside_model:
                    value = exact(value) - update.base[item.source]
                if item.source not in sums:
                    whole = state.tensors[f"{update.kind}/{item.like}" if item.like else item.source]
                    sums[item.source] = torch.zeros_like(exact(whole))
                add(sums[item.source], item.cut, value.to(sums[item.source].dtype) * factor)
        return sums

    def plus(self, state: ServerState, changes: Mapping[Address, Tensor]) -> dict[Address, Tensor]:
        """The tensors at these addresses with ``changes`` added; an address that the state lacks begins at zero."""
        old = {a: state.tensors.get(a, change) for a, change in changes.items()}
        return {a: (old[a] + c).to(old[a].dtype) if a in state.tensors else c for a, c in changes.items()}

    def evaluate(self, kind: str, split: str) -> Work:
        """The work that scores the model of a client kind on a split: one of the server's, or a client's HELD_OUT."""
        described, setting = self.setting.kinds[kind], self.setting
        args = self.requested_fields(kind)
        patterns: tuple[str, ...] = (described.pattern,)
        if described.like == "retrieve":
            args["samples"] = setting.pairs
            if setting.pairs > setting.fold:
                args["fold"] = setting.fold
        if split == HELD_OUT:  # a client's samples lack what they lack
            patterns = described.patterns if described.like == "classify" else patterns
        elif setting.missing.get(kind):
            args = {**args, "missing": {kind: setting.missing[kind]}, "whole": described.pattern}
            if described.like == "classify":
                patterns = (described.pattern, *described.modalities)
        args = {**args, **self.mask(kind, patterns[-1]), **self.chunk(kind)}
        score = task_named(described.task).score
        pass_ = Pass(score, split, patterns, setting.evaluation_batch, False, args)  # type: ignore[arg-type]
        attention = self.setting.training.attention
        if attention in ("flash", "cudnn"):
            attention = "device"  # an evaluation is in float32, which these don't support on a GPU
        return Work(kind, described.model, (), (pass_,), (self.model_payload(kind),), attention=attention)

    def client_evaluation(self, kind: str, round: int, variant: Hashable = None) -> Work:
        """``evaluate_client`` of a variant; it isn't to be overridden."""
        method, own = self.method_of(variant)
        asked: Callable[..., Work] = method.evaluate_client
        return asked(kind, round, own) if method.varies else asked(kind, round)

    def evaluate_client(self, kind: str, round: int, variant: Hashable = None) -> Work:
        """A client's work that scores its model on the samples that it holds out of its training (HELD_OUT).

        Default: ``evaluate`` on the client's own model, from the addresses that its work downloads, in batches of its
        training, with the parts that the client keeps (``keep`` of its work).  A method whose clients have another
        model for themselves overrides it.  It may train first; nothing of it is sent up or kept.
        """
        work, training = self.evaluate(kind, HELD_OUT), self.setting.training.of(kind)
        if work.kind != kind:  # the server's own model
            work = Method.evaluate(self, kind, HELD_OUT)
        names = {item.name for payload in work.down for item in payload.items}
        kept: tuple[str, ...] = ()
        if self.participates(kind, round):
            own = self.client_work(kind, round, variant)
            kept, sources = own.keep, {item.name: item.source for payload in own.down for item in payload.items}
            work = replace(work, down=tuple(payload.with_sources(sources) for payload in work.down))
        batch = training.batch_of(self.setting.kinds[kind].pattern)
        passes = tuple(replace(p, batch=min(p.batch, batch)) for p in work.passes)
        return replace(work, passes=passes, keep=tuple(name for name in kept if name in names))


def keep_personal(work: Work, parts: Sequence[str]) -> Work:
    """The work whose client keeps these parts of its model (FedPer, Arivazhagan et al. 2019); they train as before.

    Raises MethodError if nothing of the model would be sent.
    """
    names = [item.name for payload in work.down for item in payload.items if not item.is_beside_model]
    mine = [name for name in names if any(adapters.belongs(name, part) for part in parts)]
    if len(mine) == len(names):
        raise MethodError(f"personal: nothing of the model of kind {work.kind!r} would be sent; leave a part out")
    up = tuple(payload.only(lambda item: item.parameter not in mine) for payload in work.up)
    return replace(work, up=up, keep=(*work.keep, *(name for name in mine if name not in work.keep)))
