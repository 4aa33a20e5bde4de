"""Checks of what a run with ``training: none`` asks of a method: shapes without values must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from edgefl.commands.check import rules
from edgefl.commands.check.federation import TinyFederation
from edgefl.commands.check.findings import Place
from edgefl.methods import ServerState, Update
from edgefl.planning import shapes, shapes_alone
from edgefl.work import Work


def check_first_shapes(federation: TinyFederation, where: str, state: ServerState) -> None:
    """Check that ``initial()`` gives the same addresses and shapes on the meta device."""
    with federation.findings.attempt(rules.UNTRAINED, where):
        alone = shapes(federation.method)
        same = {a: _form(t) for a, t in alone.tensors.items()}.items() ^ {
            a: _form(t) for a, t in state.tensors.items()
        }.items()
        fault = "{} has another shape without training"
        federation.findings.expect_none(rules.UNTRAINED, where, {address for address, _ in same}, fault)


def check_server_works(
    federation: TinyFederation, when: str, place: Place, state: ServerState, works: Sequence[Work]
) -> None:
    """Check that the works of the server ``before`` or ``after`` a round are the same without values."""
    where = place.at(f"{when}()")
    with federation.findings.attempt(rules.UNTRAINED, where):
        with shapes_alone(federation.method, f"{when}()"), torch.device("meta"):
            alone = getattr(federation.new_method(), when)(_on_meta(state), place.round)
        equal = [work.encode() for work in alone] == [work.encode() for work in works]
        federation.findings.expect(rules.UNTRAINED, where, equal, "without training it gives other works")


def check_untrained_aggregation(
    federation: TinyFederation, where: str, state: ServerState, updates: Sequence[Update], new: ServerState
) -> None:
    """Check that ``aggregate()`` changes the same tensors without values as it did with them (``new``).

    As in a run with ``training: none``, clients of one variant that train and send the same share one update.
    """
    with federation.findings.attempt(rules.UNTRAINED, where):
        alike = {(u.kind, u.variant, u.work.trainable, repr(u.work.up)): u for u in updates}
        sent = [
            replace(
                update,
                client=update.client if federation.method.varies else number,
                payloads={name: _empty(tensors) for name, tensors in update.payloads.items()},
                base=_empty(update.base),
            )
            for number, update in enumerate(alike.values())
        ]
        with shapes_alone(federation.method, "aggregate()"), torch.device("meta"):
            alone = federation.new_method().aggregate(_on_meta(state), sent)
        different = _changed(state, alone) ^ _changed(state, new)
        fault = "{} changes either with training or without it, not both"
        federation.findings.expect_none(rules.UNTRAINED, where, different, fault)


def _changed(old: ServerState, new: ServerState) -> set[str]:
    return {address for address, version in new.versions.items() if version != old.versions.get(address)}


def _on_meta(state: ServerState) -> ServerState:
    return ServerState(_empty(state.tensors), dict(state.versions))


def _empty(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}


def _form(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype
