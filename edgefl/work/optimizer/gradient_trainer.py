"""Training by gradients: the optimizer, gradient accumulation, loss scaling and clipping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version

from edgefl.errors import MethodError
from edgefl.models.layers import attention_outputs
from edgefl.registry.part_fields import build_part
from edgefl.work.description import OptimizerSettings, Pass, Work
from edgefl.work.meter.meter import Meter, NoMeter, pausing_meter
from edgefl.work.meter.trace import UPDATE
from edgefl.work.optimizer.learning_rates import parameter_groups
from edgefl.work.optimizer.optimizers import Optimizer
from edgefl.work.step_faults import missing_gradients
from edgefl.work.steps import Context, Step


def make_optimizer(work: Work, named: Mapping[str, Tensor]) -> torch.optim.Optimizer:
    """The optimizer of a work for parameters by name, in groups where rates differ by part.

    Raises UnknownName for an unknown optimizer.
    """
    settings = cast(OptimizerSettings, {**work.optimizer, **work.scalars})
    parameters: list[Any] = list(named.values())
    if settings.get("rates"):
        parameters = [
            {**group, "params": [named[n] for n in names]} for group, names in parameter_groups(settings, named)
        ]
    part: Optimizer = build_part("optimizer", {**settings.pop("options", {}), "name": settings["name"]})
    return part.build(parameters, settings, settings.get("implementation", "fused"))


def wrong_step(work: Work, dtype: torch.dtype) -> str | None:
    """What is wrong with a step of a work's optimizer in a half precision on the CPU; None if it is right.

    It is tried: implementations lack dtypes, and torch 2.13's fused SGD goes astray in bfloat16.
    """
    moved = []
    for implementation in dict.fromkeys((work.optimizer.get("implementation", "fused"), "for-loop")):
        settings = cast(OptimizerSettings, {**work.optimizer, "implementation": implementation})
        scalars = {name: value for name, value in work.scalars.items() if name != "rates"}
        value = torch.linspace(-1, 1, 64, dtype=dtype, device="cpu").requires_grad_()
        value.grad = torch.linspace(2, -1, 64, dtype=dtype, device="cpu")
        try:
            make_optimizer(replace(work, optimizer=settings, scalars={**scalars, "lr": 0.1}), {"tried": value}).step()
        except (RuntimeError, NotImplementedError) as error:
            return f"({implementation}) has no step ({' '.join(str(error).split())[:60]})"
        moved.append(value.detach().float())
    if (moved[0] - moved[-1]).abs().max() > WRONG:
        return f"({work.optimizer.get('implementation')}) makes wrong steps"
    return None


WRONG = 0.02
"""How far two implementations of a step of 0.1 from numbers below 1 may be apart by rounding.

In bfloat16 fused AdamW differs from its loop by 0.004, and SGD, which goes astray in torch 2.13, by 0.2.
"""


class GradientTrainer:
    """The optimizer of a work, with gradient accumulation and loss scaling.

    ``every`` batches make one update of their mean loss; ``pending`` counts those not used yet.  In float16 the loss
    is scaled, and an update that overflows is skipped and not counted.  ``before`` is called before each update, with
    the unscaled gradients.  With ``step_in_backward`` a parameter is updated in the backward pass, as soon as its
    gradient is whole, and the gradient is freed.  With ``offload_states`` the states that are as large as parameters
    lie in the memory of a GPU's host, and those of one parameter at a time are on the GPU, for its step.  With
    ``note_gradients`` the metrics ``gradient[<tower>.blocks.<index>]`` are norms of the gradient of each block's
    attention output: means over the updates, of gradients that are unscaled and not clipped.
    """

    def __init__(self, ctx: Context):
        work = ctx.work
        self.ctx, self.settings, self.trained = ctx, work.optimizer, list(ctx.trained.values())
        self.optimizer = ctx.optimizer = make_optimizer(work, ctx.trained)
        self.before: Callable[[], None] | None = None
        self.every = work.accumulation
        self.pending = self.left = 0
        self.scaler = torch.amp.GradScaler(ctx.device.type) if work.precision == "float16" else None
        self.in_backward = bool(self.settings.get("step_in_backward"))
        self.offloads = bool(self.settings.get("offload_states"))
        groups = self.optimizer.param_groups if self.in_backward or self.offloads else ()
        self._alone = [(p, {**group, "params": [p]}) for group in groups for p in group["params"]]
        self._hosts: dict[tuple[Tensor, str], Tensor] = {}
        noted = attention_outputs(work.model["towers"], ctx.trained) if self.settings.get("note_gradients") else {}
        self._noted = {ctx.trained[name]: f"gradient[{block}]" for name, block in noted.items()}
        self._counts = Counter[str]()

    def scale_rates(self, factor: float) -> None:
        """Set every group's learning rate to that of the first local epoch, times ``factor``."""
        for group in [own for _, own in self._alone] or self.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor

    def begin(self, step: Step, pass_: Pass) -> None:
        """Before a pass: the step may change gradients.  Raises MethodError if the backward pass leaves none."""
        if step.changes_gradients and self.in_backward:
            raise missing_gradients(pass_, "a step in the backward pass leaves no", "step_in_backward: false")
        self.before = partial(step.gradient, self.ctx, pass_) if step.changes_gradients else None
        self.left = sum(self.ctx.source.counts(pass_).values()) if self.every > 1 else 0

    def train(self, forward: Callable[[], Tensor], meter: Meter | NoMeter) -> Tensor:
        """Accumulate a batch's gradients, and apply them if it is a group of its own.

        Raises MethodError if a gradient needs a parameter's value from before its step (``step_in_backward``).
        """
        loss = forward()
        meter.enter("backward")
        if self.in_backward:
            self._step_in_backward(loss, meter)
            return loss.detach()
        self.pending += 1
        scaled = loss / self.every if self.every > 1 else loss
        if self.scaler is not None:
            scaled = self.scaler.scale(scaled)
        scaled.backward()
        del scaled  # it would be in the peak of the update
        if self.every == 1:
            self.update(meter)
        return loss.detach()

    def end_batch(self, index: int, meter: Meter | NoMeter) -> None:
        """Update the parameters if the batch is the last of its group, which at the end of a pass may be smaller.

        The batch is still in memory then, as in a usual loop.
        """
        self.left -= 1
        if self.pending == self.every or not self.left:
            self.end_pass(index, meter)

    def end_pass(self, index: int, meter: Meter | NoMeter) -> None:
        """Update the parameters by gradients that are left, metered as a step of its own.

        They are left by a prediction, which ends before the last batch of a pass.
        """
        if self.pending:
            with meter.step(index, UPDATE):
                self.update(meter)

    def _step_in_backward(self, loss: Tensor, meter: Meter | NoMeter) -> None:
        # hooks run in the order in which they were made: a meter's, which sees the gradient, is older
        hooks = [p.register_post_accumulate_grad_hook(partial(self._step, group, meter)) for p, group in self._alone]
        try:
            loss.backward()
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise MethodError(
                "a parameter took its step in the backward pass before all that reads its value was differentiated; "
                "set training.step_in_backward: false"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
        self.ctx.updates += 1

    def _step(self, group: dict[str, Any], meter: Meter | NoMeter, parameter: Tensor) -> None:
        """Update the one parameter of a group, whose gradient is whole, and free the gradient."""
        self.optimizer.param_groups = [group]
        with meter.aside("optimizer"):
            if self.in_backward:
                self._note(self._norms([parameter]))
            if self.offloads:
                self._bring(parameter)
            self.optimizer.step()
            increment_version(parameter)  # an optimizer of a library may write past autograd's eyes
        meter.adopt((v for v in self.optimizer.state[parameter].values() if isinstance(v, Tensor)), "optimizer")
        parameter.grad = None
        if self.offloads:
            self._send(parameter)
            meter.adopt_on_host(self._hosts.values())

    def _offloaded_states(self, parameter: Tensor) -> list[tuple[str, Tensor]]:
        """The states of a parameter that are as large as it, by name."""
        state = self.optimizer.state[parameter].items()
        return [(name, v) for name, v in state if isinstance(v, Tensor) and v.shape == parameter.shape]

    def _bring(self, parameter: Tensor) -> None:
        """Copy the states of a parameter from the host."""
        for name, host in self._offloaded_states(parameter):
            value = self.optimizer.state[parameter][name] = torch.empty_like(host, device=parameter.device)
            with pausing_meter():
                value.copy_(host, non_blocking=True)

    def _send(self, parameter: Tensor) -> None:
        """Copy the states of a parameter to the host, into pinned memory, so that the device needn't be waited for."""
        for name, value in self._offloaded_states(parameter):
            with pausing_meter():
                if (parameter, name) not in self._hosts:
                    pinned = value.is_cuda and not isinstance(value, FakeTensor)
                    host = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=pinned)
                    self._hosts[parameter, name] = host
                host = self.optimizer.state[parameter][name] = self._hosts[parameter, name]
                host.copy_(value, non_blocking=True)

    def update(self, meter: Meter | NoMeter) -> None:
        """Apply the accumulated gradients and clear them."""
        skipped = False
        meter.enter("optimizer")
        clip = self.settings.get("clip")
        if self.scaler is not None and (clip or self.before or self._noted):
            self.scaler.unscale_(self.optimizer)
        if self.before:
            with torch.no_grad():
                self.before()
        norms = self._norms(self._noted)
        if clip:
            # explicit, because torch's default differs between real and fake tensors
            foreach = self.settings.get("implementation") != "for-loop"
            nn.utils.clip_grad_norm_(self.trained, clip, foreach=foreach)
        try:
            if self.scaler is not None:
                self.scaler.step(self.optimizer)
                skipped = self._has_overflowed(self.scaler)
                self.scaler.update()
            elif self.offloads:
                with torch.no_grad():
                    for parameter, group in self._alone:
                        self._step(group, meter, parameter)
            else:
                self.optimizer.step()
        except TypeError as error:
            if "expected Tensor as element" not in str(error):
                raise
            raise MethodError(
                "torch's fused SGD with momentum can't train a parameter that had no gradient in the update before; "
                "set training.implementation to foreach or for-loop"
            ) from error
        if not self.offloads:
            state = (v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, Tensor))
            meter.adopt(state, "optimizer")
        self.optimizer.zero_grad(set_to_none=True)
        self.pending = 0
        self.ctx.updates += not skipped
        if not skipped:
            self._note(norms)

    def _norms(self, parameters: Iterable[Tensor]) -> dict[str, Tensor]:
        """The L2 norm of the gradient of each of these parameters that is noted, by metric."""
        noted = {self._noted[p]: p.grad for p in parameters if p in self._noted and p.grad is not None}
        return {name: torch.linalg.vector_norm(grad, dtype=self.ctx.floating) for name, grad in noted.items()}

    def _note(self, norms: Mapping[str, Tensor]) -> None:
        """Take the norms of an update into the means."""
        for name, norm in norms.items():
            self._counts[name] += 1
            self.ctx.metrics.setdefault(name, torch.zeros_like(norm)).lerp_(norm, 1 / self._counts[name])

    def _has_overflowed(self, scaler: torch.amp.GradScaler) -> bool:
        """Whether the gradients had an infinity or a NaN, so that the scaler skipped the update."""
        found = scaler._found_inf_per_device(self.optimizer).values()
        # a prediction has no values
        return not any(isinstance(each, FakeTensor) for each in found) and any(float(each) for each in found)
