"""Updates that aren't what a client's work was to send: refused, named, counted, and the round goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_games import Games, broken_rules
from tensors import assert_equal_tensors
from torch import Tensor

from edgefl.training import Assignment, Inline
from edgefl.work.update import Update

Named = dict[str, Tensor]
FORGER = 1
"""The client that sends something else; an image client."""


def first(named: Named, value: Callable[[Tensor], Tensor]) -> Named:
    name = next(iter(named))
    return {**named, name: value(named[name])}


FORGERIES: dict[str, Callable[[Named], Named]] = {
    "wrong shape": lambda named: first(named, lambda value: torch.cat([value, value])),
    "wrong dtype": lambda named: first(named, Tensor.double),
    "truncated": lambda named: dict(list(named.items())[:-1]),
    "oversized": lambda named: {**named, "extra": torch.zeros(3)},
    "not finite": lambda named: first(named, lambda value: value * torch.inf),
}


class ForgingExecutor:
    """Trains every task, and changes the payloads of one client's report on their way to the server."""

    window = None

    def __init__(self, inner: Inline, forge: Callable[[Named], Named] | None):
        self.inner, self.forge = inner, forge
        self.answers: list[Update] = []

    def submit(self, task: Assignment) -> Future[Update]:
        future = self.inner.submit(task)
        if task.client != FORGER:
            return future
        report = future.result()
        self.answers.append(report)
        if self.forge is None:  # the first answer again and again
            report = self.answers[0]
        else:
            payloads = {name: self.forge(dict(named)) for name, named in report.payloads.items()}
            report = replace(report, payloads=payloads)
        forged: Future[Update] = Future()
        forged.set_result(report)
        return forged

    def close(self) -> None:
        self.inner.close()


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


@pytest.mark.parametrize("policy", ["synchronous", pytest.param("buffered", marks=pytest.mark.slow)])
@pytest.mark.parametrize("reason", [*FORGERIES, "replayed"])
def test_a_forged_update_is_refused_named_and_counted(games: Games, reason: str, policy: str) -> None:
    setup = games.setup(schedule={"name": "end-to-end", "rounds": 2}, round={"policy": policy})
    with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
        executor = ForgingExecutor(inline, FORGERIES.get(reason))
        simulation, journal = games.real(setup, executor)  # type: ignore[arg-type]
    rounds, clients = journal.tables["rounds"], journal.tables["clients"]
    forged = [c for c in clients if c["client"] == FORGER]
    expected = [reason != "replayed" or number > 0 for number in range(len(forged))]
    assert [c["outcome"] == "rejected" for c in forged] == expected and any(expected)
    assert {c["outcome"] for c in clients if c["client"] != FORGER} == {"finished"}
    counted = sum(r["rejections"].get(reason, 0) for r in rounds)
    assert counted == sum(expected) == sum(r["rejected"].count(FORGER) for r in rounds)
    assert all(r["outcome"] == "completed" and not r["diverged"] for r in rounds)
    assert broken_rules(setup, journal) == []
    assert all(bool(value.isfinite().all()) for value in simulation.state.tensors.values())


def test_a_round_with_a_forger_is_the_round_without_the_client(games: Games) -> None:
    """What the server learns is what it learns of the others: the forger's client is absent from the mean."""
    setup = games.setup(data={"source": "glyphs", "clients": {"image": 3}, "samples": 40, "validation": 40, "test": 40},
                        schedule={"name": "end-to-end", "rounds": 1})  # fmt: skip
    with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
        executor = ForgingExecutor(inline, FORGERIES["wrong shape"])
        refused, _ = games.real(setup, executor)  # type: ignore[arg-type]
        zero = ForgingExecutor(inline, lambda named: named)
        reports: list[tuple[int, Update]] = []
        submit = zero.submit

        def noted(task: Assignment) -> Future[Update]:
            future = submit(task)
            if task.client is not None:
                reports.append((task.client, future.result()))
            return future

        zero.submit = noted  # type: ignore[method-assign]
        games.real(setup, zero)  # type: ignore[arg-type]
    samples = {client: int(setup.clients.client_samples[client]) for client, _ in reports}
    others = [(samples[client], report.payloads["model"]) for client, report in reports if client != FORGER]
    total = sum(count for count, _ in others)
    mean = {name: sum(count * sent[name].double() for count, sent in others) / total for name in others[0][1]}
    held = {name.removeprefix("image/"): value for name, value in refused.state.tensors.items()}
    floating = {name: value.float() for name, value in mean.items() if held[name].is_floating_point()}
    assert_equal_tensors({name: held[name] for name in floating}, floating, rtol=1e-5, atol=1e-6)
