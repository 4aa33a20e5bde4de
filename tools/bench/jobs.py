"""The jobs of every contestant, and its side of the turns.  All environments read this: the standard library alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass

CLASSES = 10
CHANNELS = 3
SIZE = 32
LEARNING_RATE = 0.01
HELD_OUT = 10
"""Samples of edgefl's validation and test splits each, which are scored in a run's last round."""


@dataclass(frozen=True)
class Job:
    """One epoch of SGD per client and round: ``cohort`` of ``clients``, each with ``samples`` pictures of 3 x 32 x 32.

    ``vit`` has the vision transformer's blocks, width, heads and patch; None stands for the convolutional network.
    ``alone``: contestants take turns one at a time with the bare loops, since all at once would need too much memory.
    """

    name: str
    title: str
    clients: int
    samples: int
    cohort: int
    batch: int
    vit: tuple[int, int, int, int] | None
    alone: bool = False

    @property
    def parameters(self) -> int:
        """Parameters of the model, by hand."""
        if self.vit is None:
            features = 32 * (SIZE // 4) ** 2
            convolutions = (9 * CHANNELS + 1) * 16 + (9 * 16 + 1) * 32
            return convolutions + (features + 1) * 48 + 49 * CLASSES
        blocks, width, _, patch = self.vit
        tokens = (SIZE // patch) ** 2 + 1
        embedding = CHANNELS * patch**2 * width + width + width + tokens * width
        return embedding + blocks * (12 * width**2 + 13 * width) + 2 * width + (width + 1) * CLASSES

    @property
    def steps(self) -> int:
        """Steps of all clients in a round."""
        return self.cohort * -(-self.samples // self.batch)


JOBS = {
    job.name: job
    for job in (
        Job("vit", "ViT of 214 k parameters", 100, 64, 10, 32, (4, 64, 4, 8)),
        Job("cnn", "CNN of 104 k parameters", 100, 64, 10, 32, None),
        Job("big", "ViT of 21 M parameters, 85 MB", 20, 4, 20, 4, (12, 384, 6, 8), alone=True),
        Job("small", "ViT of 33 k parameters", 100, 64, 32, 8, (2, 32, 4, 8)),
        Job("tiny", "tiny ViT, for a trial of the tool", 6, 8, 3, 4, (1, 16, 2, 8)),
    )
}


class Turns:
    """The channel to the tool.  What else the process writes to stdout goes to stderr from here on.

    The first round begins at once.  Each later one, and the end of the process, waits for the tool.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.round = 0

    def played(self, parameters: int, clients: int, parts: dict[str, dict[str, float]] | None = None) -> None:
        """Tell that a round ended, with the model's parameters and the clients that trained; wait for the next turn.

        ``parts`` is the round's time by part, where it is measured.  Ends the process if the tool is gone.
        """
        self.round += 1
        facts = {"round": self.round, "parameters": parameters, "clients": clients, "parts": parts}
        self._answers.write(json.dumps(facts) + "\n")
        self._answers.flush()
        if not sys.stdin.readline():
            sys.exit("the tool that gives the turns is gone")


def asked() -> tuple[Job, argparse.Namespace]:
    """The job of a contestant's command line, and its other arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--ray", action="store_true")
    chosen = parser.parse_args()
    return JOBS[chosen.job], chosen
