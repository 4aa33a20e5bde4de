"""The scenario's ``training`` section: how every client trains locally."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    SerializeAsAny,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from edgefl import registry
from edgefl.registry.part_fields import Fields
from edgefl.work.description import OptimizerSettings, Pass, Scalar
from edgefl.work.optimizer.learning_rates import Rate, check_key, rate_settings, scale_rate
from edgefl.work.optimizer.optimizers import Optimizer, parse_optimizer
from edgefl.work.optimizer.rate_schedules import Constant, RateSchedule, parse_rate_schedule

_NAMED: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"name": {"type": "string"}}}]}
_OPTIMIZER = WithJsonSchema({**_NAMED, "examples": ["adamw", {"name": "rmsprop", "alpha": 0.9}]})
_OR_NULL = WithJsonSchema({"anyOf": [*_NAMED["anyOf"], {"type": "null"}]})

NO_GRADIENTS = (
    "weight_decay", "rates", "betas", "momentum", "implementation", "accumulation", "clip", "checkpointing",
    "step_in_backward", "offload_states", "note_gradients",
)  # fmt: skip
"""Fields that mean nothing, or aren't built, where no gradient is computed (optimizer mezo)."""


def _check_betas(value: tuple[float, float]) -> tuple[float, float]:
    if not all(0 <= beta < 1 for beta in value):
        raise ValueError(f"betas must be at least 0 and below 1, not {value}")
    return value


_Betas = Annotated[tuple[float, float], AfterValidator(_check_betas)]


def _parse_given(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else parse(value)


_BLOCKS = r"^(1 block|([2-9]|[1-9][0-9]+) blocks)$"


def _check_blocks(value: Any) -> str:
    if isinstance(value, str) and re.search(_BLOCKS, value):
        return value
    raise ValueError(f"must be true, false or a number of blocks such as 10 blocks, not {value!r}")


class OwnTraining(Fields):
    """Training of one kind of client, of devices, or of the server's own model, where it differs from ``training``."""

    optimizer: Annotated[Any, BeforeValidator(_parse_given(parse_optimizer)), _OR_NULL] = Field(
        None, description="optimizer of these clients, or of this model; null: as in training, like all fields here"
    )
    lr: PositiveFloat | None = Field(
        None, description="learning rate of round 1, in place of training's lr, rates and scale_with_batch"
    )
    lr_decay: float | None = Field(None, gt=0, le=1, description="factor on the learning rate after every round")
    lr_schedule: Annotated[
        SerializeAsAny[RateSchedule] | None, BeforeValidator(_parse_given(parse_rate_schedule)), _OR_NULL
    ] = Field(None, description="factor on the learning rates by round")
    weight_decay: float | None = Field(None, ge=0, description="weight decay of the optimizer")
    betas: _Betas | None = Field(None, description="decay rates of both moments of the optimizer")
    momentum: float | None = Field(None, ge=0, lt=1, description="momentum of sgd")
    clip: PositiveFloat | Literal[False] | None = Field(
        None, description="largest L2 norm of all gradients together; false: no clipping"
    )
    precision: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="float32, or autocast in a half precision"
    )


class PrivateOptions(Fields):
    """DP-SGD (Abadi et al. 2016): a clip bounds what one sample can change, and noise hides it."""

    clip: PositiveFloat | None = Field(None, description="largest L2 norm of a sample's gradient, over all that trains")
    noise: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="deviation of the noise on a batch's sum, over clip"
    )
    micro_batch: PositiveInt | None = Field(
        None,
        description="samples that are differentiated at a time: the same updates in less memory and more time; 1 takes "
        "one after the other, without torch.func; null: the whole batch",
    )
    poisson: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="mean size of a batch, as a share of batch: each sample is in it with the same probability, and "
        "free places cost as much; null: shuffled epochs",
    )
    delta: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="delta at which edgefl profile says the epsilon of a sample; only with poisson and noise"
    )

    @model_validator(mode="after")
    def _check_bound(self) -> PrivateOptions:
        if self.clip is None:
            raise ValueError("noise hides a sample only where its gradient is bounded: set clip, such as 1.0")
        if self.delta is not None and not (self.poisson and self.noise):
            raise ValueError("delta needs noised Poisson samples: set poisson, such as 0.5, and noise, or leave it out")
        return self


_Epochs = PositiveInt | Annotated[PositiveFloat, Field(allow_inf_nan=False)]  # whole numbers stay whole in files


class GroupTraining(OwnTraining):
    """Training of one kind of client or of devices, where it differs from ``training``: how much they do too."""

    batch: PositiveInt | None = Field(None, description="samples per step")
    epochs: _Epochs | None = Field(None, description="local epochs per round, in place of steps")
    steps: PositiveInt | None = Field(None, description="local steps per round, in place of epochs")
    accumulation: int | None = Field(None, ge=1, le=64, description="batches whose mean gradient makes one update")


class TrainingOptions(Fields):
    """How a client trains in a round."""

    mode: Literal["real", "none"] = Field(
        "real", description="real trains; none only computes costs: the same records, without losses and metrics"
    )
    on_divergence: Literal["stop", "continue"] = Field(
        "stop",
        description="what a run does after a round in which weights, scores or all losses of a kind have NaN or "
        "infinity: it stops and can be resumed (stop), or goes on (continue)",
    )
    optimizer: Annotated[Any, BeforeValidator(parse_optimizer), _OPTIMIZER] = Field(
        "adamw",
        description="the clients' optimizer: adamw, adam, adamp, sgd, adamw-8bit, mezo, or another registered one, "
        "also as a mapping with its fields; its state starts anew in every round. adamw-8bit has states of 8 bits "
        "(Dettmers et al. 2022; the extra quant); mezo trains without gradients, by the losses of two forward passes "
        "(Malladi et al. 2023)",
    )
    epsilon: PositiveFloat = Field(1e-3, description="distance at which mezo evaluates both losses, in parameters")
    lr: PositiveFloat = Field(1e-3, description="learning rate of round 1")
    lr_decay: float = Field(
        1.0, gt=0, le=1, description="factor on all learning rates after every round, or after what lr_decay_per says"
    )
    lr_decay_per: Literal["round", "epoch", "local-epoch"] = Field(
        "round",
        description="after what lr_decay applies: every round, every local epoch of the run (epoch), or every local "
        "epoch of a round, each of which begins at the full rate (local-epoch); only passes over a client's own "
        "samples are epochs",
    )
    lr_schedule: Annotated[
        SerializeAsAny[RateSchedule], BeforeValidator(parse_rate_schedule), WithJsonSchema(_NAMED)
    ] = Field(
        Constant.model_validate({}),
        description="factor on all learning rates by round: constant, step, cosine, another registered one, or a "
        "mapping with a name, a warm-up and further fields; lr_decay applies too",
    )
    weight_decay: float = Field(0.0, ge=0, description="weight decay of the optimizer")
    rates: dict[str, Rate] = Field(
        default_factory=dict,
        description="learning rates by tower or part, of which the most specific key applies (image.rep before "
        "rep before image); each is a rate, a list with one rate per stage, or {lr, weight_decay}: {image: 1e-7, "
        "text: [1e-7, 1e-5], head: {lr: 3e-4, weight_decay: 1e-6}}",
    )
    scale_with_batch: PositiveInt | None = Field(
        None,
        description="batch size for which the learning rates are given: they are multiplied by the actual batch size "
        "and divided by this one; null: no scaling",
    )
    betas: _Betas = Field((0.9, 0.999), description="decay rates of both moments, of adam, adamw and adamp")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    implementation: Literal["for-loop", "foreach", "fused"] = Field(
        "fused",
        description="torch's implementation of the optimizer's step: changes its speed and its temporary memory",
    )
    by: dict[str, GroupTraining] = Field(
        default_factory=dict,
        description="what differs for kinds of clients, or for devices of the fleet by name, in which * stands for any "
        "letters: {image-text: {optimizer: adamp, lr: 2e-4}, raspberry-pi-*: {batch: 8, epochs: 1}}; of several that "
        "a client is of, devices count over kinds, and later devices over earlier ones",
    )
    batch: PositiveInt | dict[str, PositiveInt] = Field(
        32,
        description="samples per step, for all or by modality pattern: {image: 32, image-text: 64}; samples that "
        "don't fill the last batch of an epoch are left out of it",
    )
    epochs: _Epochs = Field(
        1,
        description="local epochs per round, also parts: 0.5 is half of the batches, rounded down, but at least one",
    )
    steps: PositiveInt | None = Field(
        None,
        description="local steps per round instead of epochs, each of a batch, whatever number of samples a client "
        "has; null: as many as the epochs have",
    )
    accumulation: int = Field(
        1, ge=1, le=64, description="batches whose mean gradient makes one update: a larger batch in less memory"
    )
    precision: Literal["float64", "float32", "bfloat16", "float16"] = Field(
        "float32",
        description="float32, or autocast in a half precision; float16 scales the loss and needs implementation: "
        "fused; float64: parameters, gradients, states, what is sent, aggregation and evaluation, from the values that "
        "float32 starts with, to compare with other programs",
    )
    attention: Literal["device", "math", "flash", "efficient", "cudnn"] = Field(
        "device",
        description="kernel that computes attention; device leaves the choice to torch; a CPU has math and flash only",
    )
    missing: Literal["ignore", "zero", "random"] = Field(
        "zero",
        description="what replaces the feature of a modality that a sample lacks (data.missing) where pairs are "
        "classified: zeros, or normal noise; ignore leaves such samples out, as retrieval always does",
    )
    clip: PositiveFloat | None = Field(None, description="largest L2 norm of all gradients together; null: no clipping")
    private: PrivateOptions | None = Field(
        None, description="DP-SGD at the clients, with noise for each batch: {clip: 1.0, noise: 1.1, micro_batch: 4}"
    )
    checkpointing: bool | Annotated[str, BeforeValidator(_check_blocks), Field(pattern=_BLOCKS)] = Field(
        False,
        description="recompute each block in the backward pass: less memory, more FLOPs; 10 blocks: the first 10 of "
        "each tower (all, if it has fewer), whose activations would be held longest",
    )
    loss_chunk: PositiveInt | None = Field(
        None,
        description="tokens whose scores of the vocabulary are in memory at a time, in training and in evaluation, for "
        "the task next-token: the same loss but for rounding, in less memory; null: those of the whole batch",
    )
    step_in_backward: bool = Field(
        False,
        description="update each parameter in the backward pass, as soon as its gradient is whole, and free the "
        "gradient (as LOMO, Lv et al. 2023): the same updates in less memory; not with accumulation, clip or "
        "precision: float16, which need all gradients",
    )
    offload_states: bool = Field(
        False,
        description="keep the optimizer's states in pinned memory of a GPU's host, and bring those of one parameter at "
        "a time to the GPU for its step; only with executor.device: cuda, and not with precision: float16",
    )
    note_gradients: bool = Field(
        False,
        description="clients record the norm of the gradient of each block's attention output, before clipping: the "
        "mean over a round's updates; edgefl analyse --only gradients shows those of the last round of each stage",
    )
    measure: Literal["first", "all"] = Field(
        "first", description="works that are metered while they train: the first of each distinct cost, or all"
    )
    _rounds: int = PrivateAttr(0)
    _factors: tuple[float, ...] = PrivateAttr(())
    _of_key: dict[str, TrainingOptions] = PrivateAttr(default_factory=dict)

    @field_validator("rates")
    @classmethod
    def _keys(cls, value: dict[str, Rate]) -> dict[str, Rate]:
        for key, rate in value.items():
            check_key(key)
            if rate_settings(rate).get("lr") == []:
                raise ValueError(f"{key}: an empty list has no rate for any stage")
        return value

    @model_validator(mode="after")
    def _check(self) -> TrainingOptions:
        self._check_together()
        for key, own in self.by.items():
            try:
                self.with_own(own)
            except ValueError as error:
                raise ValueError(f"by.{key}: {error}") from None
        return self

    def _check_together(self) -> None:
        self._check_precision()
        self._check_gradients()
        self._check_single_steps()
        self._check_decay()
        self._check_private()

    def _check_precision(self) -> None:
        if self.precision == "float64" and self.optimizer == "mezo":
            raise ValueError("optimizer mezo draws and sends float32 numbers: set precision: float32")
        part: type[Optimizer] = registry.get("optimizer", self.optimizer_name)
        if self.precision not in part.precisions:
            raise ValueError(
                f"optimizer {self.optimizer_name} has no step in precision {self.precision}; allowed: "
                f"{', '.join(part.precisions)}"
            )
        if self.precision == "float16" and self.implementation != "fused":
            raise ValueError(
                f"float16 scales its loss, which implementation {self.implementation} can't do without waiting for "
                "the device at every step: set implementation: fused, or precision: bfloat16"
            )

    def _check_gradients(self) -> None:
        fields = type(self).model_fields
        reads = ("epsilon",) if self.optimizer != "mezo" else NO_GRADIENTS
        changed = [n for n in reads if getattr(self, n) != fields[n].get_default(call_default_factory=True)]
        if changed and self.optimizer != "mezo":
            raise ValueError(f"epsilon belongs to optimizer mezo, not {self.optimizer_name}")
        if changed:
            raise ValueError(
                f"optimizer mezo has no gradients and only a learning rate: leave out {', '.join(changed)}"
            )

    def _check_single_steps(self) -> None:
        if not (self.step_in_backward or self.offload_states) or self.optimizer == "mezo":
            return
        needs = {"accumulation": self.accumulation > 1, "clip": self.clip is not None,
                 "precision: float16": self.precision == "float16"}  # fmt: skip
        if self.offload_states and needs["precision: float16"]:
            raise ValueError(
                "offload_states takes a step for each parameter, which float16 would skip all at once: leave out one"
            )
        if self.step_in_backward and (wrong := [name for name, given in needs.items() if given]):
            raise ValueError(
                f"step_in_backward frees each gradient in the backward pass, and {' and '.join(wrong)} "
                f"need{'s' * (len(wrong) == 1)} all of them: leave out one or the other"
            )
        part: type[Optimizer] = registry.get("optimizer", self.optimizer_name)
        if not part.parameterwise:
            raise ValueError(
                f"{'step_in_backward' if self.step_in_backward else 'offload_states'} updates one parameter at a time, "
                f"but optimizer {self.optimizer_name} may look at several; set optimizer: sgd, adam or adamw"
            )

    def _check_private(self) -> None:
        if self.private is None:
            return
        many, single = self.private.micro_batch != 1, "takes one sample at a time: set private.micro_batch: 1"
        for given, why in (
            (self.optimizer == "mezo", "optimizer: mezo has no gradients that could be clipped: take sgd or adamw"),
            (self.step_in_backward, "step_in_backward frees a gradient before the norm of all is known: leave it out"),
            (self.precision == "float16", "float16 scales a loss whose small gradients are 0 by then: write bfloat16"),
            (many and self.checkpointing, f"checkpointing {single}"),
            (many and self.loss_chunk, f"loss_chunk {single}"),
        ):
            if given:
                raise ValueError(f"private: {why}")

    def _check_decay(self) -> None:
        if self.lr_decay_per == "round":
            return
        if self.steps is not None:
            raise ValueError(f"lr_decay_per: {self.lr_decay_per} counts epochs: leave out steps, or set it to round")
        if self.lr_decay == 1:
            raise ValueError(f"lr_decay_per: {self.lr_decay_per} needs an lr_decay below 1: with 1 no rate decays")
        if self.lr_decay_per == "local-epoch" and self.epochs <= 1:
            raise ValueError(
                "lr_decay_per: local-epoch with epochs: 1 never lowers the rate, as each round begins at the full one: "
                "set epochs to 2 or more, or lr_decay_per: round"
            )

    @property
    def optimizer_name(self) -> str:
        """The registered name of the optimizer."""
        return self.optimizer if isinstance(self.optimizer, str) else str(getattr(self.optimizer, "name", ""))

    @property
    def recomputed_blocks(self) -> int:
        """How many blocks of each tower are recomputed, the first ones; True: all."""
        return int(self.checkpointing.split()[0]) if isinstance(self.checkpointing, str) else self.checkpointing

    def batch_of(self, pattern: str) -> int:
        """The batch size of this modality pattern (32 if a mapping lacks it)."""
        return self.batch if isinstance(self.batch, int) else self.batch.get(pattern, 32)

    def over(self, rounds: int) -> TrainingOptions:
        """These options with the learning rates of a run of so many rounds."""
        options = self.model_copy()
        options._rounds = rounds
        options._factors = self.lr_schedule.factors(rounds) if self.lr_schedule.varies else ()
        options._of_key = {key: options.with_own(own) for key, own in self.by.items()}
        return options

    def of(self, kind: str) -> TrainingOptions:
        """These options for clients of this kind."""
        if kind not in self.by:
            return self
        return self._of_key.get(kind) or self.with_own(self.by[kind])

    def devices(self, kinds: Collection[str]) -> tuple[str, ...]:
        """The keys of ``by`` that are of devices, given the names of all kinds of clients."""
        return tuple(key for key in self.by if key not in kinds)

    def of_devices(self, keys: Sequence[str], kinds: Collection[str]) -> TrainingOptions:
        """These options for clients whose device these keys name, each kind's with them; no other devices'."""
        given = {name: value for key in keys for name, value in self.by[key] if value is not None}
        if given.keys() & {"epochs", "steps"}:  # each stands in place of the other
            given = {"epochs": None, "steps": None, **given}
        by = {kind: own.model_copy(update=given) for kind, own in self.by.items() if kind in kinds}
        own = self.with_own(GroupTraining.model_validate({}).model_copy(update=given)) if given else self.model_copy()
        return own.model_copy(update={"by": by}).over(self._rounds)

    @property
    def each(self) -> list[TrainingOptions]:
        """These options, and those of the kinds and devices whose differ."""
        return [self, *map(self.of, self.by)]

    def repeat_passes(self, passes: Sequence[Pass]) -> tuple[Pass, ...]:
        """One epoch's passes over a client's samples, as often as a round has them, or cut to its steps."""
        if self.steps is not None:
            return tuple(replace(each, args={**each.args, "steps": self.steps}) for each in passes)
        whole, rest = divmod(self.epochs, 1)
        part = tuple(replace(each, args={**each.args, "share": rest}) for each in passes) if rest else ()
        return tuple(passes) * int(whole) + part

    def with_own(self, own: OwnTraining) -> TrainingOptions:
        """These options where they aren't in ``own``.  Raises ValueError for fields that don't go together."""
        given = {name: value for name, value in own if value is not None}
        if "steps" in given or "epochs" in given:
            given.setdefault("steps", None)
        if "lr" in given:
            given.update(rates={}, scale_with_batch=None)
        if "lr_decay" in given:
            given["lr_decay_per"] = "round"
        if given.get("clip") is False:
            given["clip"] = None
        if given.get("optimizer", "mezo") != "mezo":
            given["epsilon"] = type(self).model_fields["epsilon"].default
        if self.precision == "float64" and "precision" in given:
            raise ValueError(f"precision: {given['precision']} beside training.precision: float64, which is for all")
        options = self.model_copy(update={**given, "by": {}})
        options._check_together()
        if self._rounds and (problem := options.lr_schedule.problem(self._rounds)):
            raise ValueError("lr_schedule.{}: {}".format(*problem))
        return options.over(self._rounds)

    def lr_factor(self, round: int) -> float:
        """Factor on every learning rate in ``round`` (from 1), in its first local epoch.

        ``lr_schedule`` counts in a run only (``over``).
        """
        # past the last round, as a method may ask, the rate stays the last
        factor = self._factors[min(round, len(self._factors)) - 1] if self._factors else 1.0
        decays = {"round": round - 1, "epoch": (round - 1) * self.epochs, "local-epoch": 0}[self.lr_decay_per]
        return float(factor * self.lr_decay**decays)

    def settings(self) -> OptimizerSettings:
        """The optimizer's settings for a Work: the same in every round."""
        if self.optimizer == "mezo":
            return {"name": self.optimizer_name, "epsilon": self.epsilon}
        settings: OptimizerSettings = {"name": self.optimizer_name, "implementation": self.implementation}
        if isinstance(self.optimizer, BaseModel):
            settings["options"] = self.optimizer.model_dump(mode="json", exclude={"name"})
        if self.accumulation > 1:
            settings["accumulation"] = self.accumulation
        if self.clip is not None:
            settings["clip"] = self.clip
        if self.step_in_backward:
            settings["step_in_backward"] = True
        if self.offload_states:
            settings["offload_states"] = True
        return settings

    def scalars_of(self, round: int, pattern: str = "") -> dict[str, Scalar]:
        """The optimizer's scalars for a Work in ``round`` (from 1), for batches of this pattern.

        Lists with a rate for each stage stay lists, since only the schedule knows the stage.
        """
        factor = self.lr_factor(round)
        if self.scale_with_batch is not None:
            factor *= self.batch_of(pattern) * self.accumulation / self.scale_with_batch
        scalars: dict[str, Scalar] = {"lr": self.lr * factor, **self._other_scalars()}
        if self.lr_decay_per != "round":
            scalars["epoch_decay"] = self.lr_decay
        if self.rates:
            rates = {key: rate_settings(rate) for key, rate in self.rates.items()}
            scalars["rates"] = {
                key: {**rate, **({"lr": scale_rate(rate["lr"], factor)} if "lr" in rate else {})}
                for key, rate in rates.items()
            }
        return scalars

    def _other_scalars(self) -> dict[str, Scalar]:
        """The scalars that the optimizer reads beside its learning rate."""
        part: type[Optimizer] = registry.get("optimizer", self.optimizer_name)
        read = {name: getattr(self, name) for name in part.reads}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in read.items()}
