"""The bare loop: federated averaging as one would write it by hand, in one process or in two.

    python -m bench.bare JOB --rounds N [--processes 1 | 2]

A resident module is loaded in place, trains with a fused SGD, and its change, weighted by the client's samples, is
added to a sum.  In two processes each trains a contiguous half of the cohort; base and second sum are shared memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from bench.jobs import LEARNING_RATE, Job, Turns, asked
from bench.plain import count, plain_model, samples_of, train


class Trainer:
    """A resident module and optimizer, and all clients' samples."""

    def __init__(self, job: Job):
        torch.set_num_threads(1)
        self.job = job
        self.module = plain_model(job).train()
        self.parameters = list(self.module.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=LEARNING_RATE, fused=True)
        self.samples = [samples_of(job, client) for client in range(job.clients)]

    def values(self) -> list[Tensor]:
        """Copies of the parameters."""
        return [p.detach().clone() for p in self.parameters]

    def add_changes(self, clients: Sequence[int], base: list[Tensor], total: list[Tensor]) -> int:
        """Train these clients from ``base`` and add their weighted changes to ``total``; returns their samples."""
        seen = 0
        for client in clients:
            x, y = self.samples[client]
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, base)
            train(self.module, self.optimizer, x, y, self.job.batch)
            with torch.no_grad():
                torch._foreach_sub_(self.parameters, base)
                torch._foreach_add_(total, self.parameters, alpha=len(x))
            seen += len(x)
        return seen


def second(job: Job, base: list[Tensor], total: list[Tensor], pipe: Connection) -> None:
    """The second process: trains what it is sent, until it is sent None."""
    trainer = Trainer(job)
    while (clients := pipe.recv()) is not None:
        torch._foreach_zero_(total)
        pipe.send(trainer.add_changes(clients, base, total))


def play(job: Job, rounds: int, processes: int) -> None:
    """Play the rounds, and tell the end of each."""
    turns, trainer, draw = Turns(), Trainer(job), random.Random(1)
    base, total = trainer.values(), trainer.values()
    parameters = count(trainer.module)
    pipe: Connection | None = None
    if processes == 2:
        context = torch.multiprocessing.get_context("spawn")
        pipe, other = context.Pipe()
        far = [t.share_memory_() for t in trainer.values()]
        base = [t.share_memory_() for t in base]
        helper = context.Process(target=second, args=(job, base, far, other), daemon=True)
        helper.start()
    for _ in range(rounds):
        cohort = draw.sample(range(job.clients), job.cohort)
        half = len(cohort) // 2 if pipe else 0
        if pipe:
            pipe.send(cohort[:half])
        torch._foreach_zero_(total)
        seen = trainer.add_changes(cohort[half:], base, total)
        if pipe:
            seen += pipe.recv()
            torch._foreach_add_(total, far)
        torch._foreach_add_(base, total, alpha=1 / seen)
        turns.played(parameters, seen // job.samples)
    if pipe:
        pipe.send(None)
        helper.join()


if __name__ == "__main__":
    chosen_job, chosen = asked()
    play(chosen_job, chosen.rounds, chosen.processes)
