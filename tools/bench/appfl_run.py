"""APPFL as a contestant: its synchronous simulation on a virtual clock, by FedAvg and its own trainer.

    python -m bench.appfl_run JOB --rounds N

Without validation, and without its collections of garbage after each message (``optimize_memory``), which would take
most of a round.  Its logs go to the folder of this process.  APPFL loads model and samples from a file, and it is this.
"""

from __future__ import annotations

import logging
import runpy
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn
from torch.utils.data import TensorDataset

from bench.jobs import JOBS, LEARNING_RATE, Job, Turns, asked
from bench.plain import count, plain_model, samples_of

VISION = runpy.run_path(str(Path(__file__).parents[2] / "edgefl" / "models" / "towers" / "vision.py"))
"""How edgefl imports torchvision next to a torch without CUDA, because APPFL imports it too."""


def model_of(job: str) -> nn.Module:
    """The job's model, as APPFL asks for it."""
    return plain_model(JOBS[job])


def data_of(job: str, client: int) -> tuple[TensorDataset, None]:
    """A client's samples for training, and none for validation."""
    return TensorDataset(*samples_of(JOBS[job], client)), None


def accuracy(labels: Any, scores: Any) -> float:
    """The share of right classes, which APPFL asks of every trainer."""
    return float((scores.argmax(1) == labels).mean())


def play(job: Job, rounds: int) -> None:
    """Play the rounds, and tell the end of each."""
    VISION["import_torchvision"]()
    from appfl.agent import ClientAgent, ServerAgent
    from appfl.config import ClientAgentConfig, ServerAgentConfig
    from appfl.vsim import ClientProfile, SyncSimDriver

    turns = Turns()
    torch.set_num_threads(1)
    model = {"model_path": __file__, "model_name": "model_of", "model_kwargs": {"job": job.name}}
    training = {
        "trainer": "VanillaTrainer", "mode": "epoch", "num_local_epochs": 1, "train_batch_size": job.batch,
        "optim": "SGD", "optim_args": {"lr": LEARNING_RATE, "fused": True}, "loss_fn": "CrossEntropyLoss",
        "metric_path": __file__, "metric_name": "accuracy", "device": "cpu", "optimize_memory": False,
    }  # fmt: skip
    server = ServerAgent(
        ServerAgentConfig(
            client_configs=OmegaConf.create({"model_configs": model, "train_configs": {}}),
            server_configs=OmegaConf.create(
                {
                    "num_clients": job.clients, "optimize_memory": False, "num_global_epochs": rounds + 1,
                    "scheduler": "SyncScheduler",
                    "scheduler_kwargs": {"num_clients": job.clients, "optimize_memory": False},
                    "aggregator": "FedAvgAggregator",
                    "aggregator_kwargs": {"client_weights_mode": "equal", "optimize_memory": False},
                }
            ),
        )
    )  # fmt: skip

    def client(number: int) -> Any:
        data = {
            "dataset_path": __file__,
            "dataset_name": "data_of",
            "dataset_kwargs": {"job": job.name, "client": number},
        }
        config = ClientAgentConfig(
            train_configs=OmegaConf.create(training),
            model_configs=OmegaConf.create(model),
            data_configs=OmegaConf.create(data),
        )
        config.client_id, config.optimize_memory = str(number), False
        return ClientAgent(config)

    clients = [client(number) for number in range(job.clients)]

    class Simulation(SyncSimDriver):  # type: ignore[misc]
        """APPFL's driver, which waits for the next turn after each round."""

        def _run_round(self) -> Any:
            played = super()._run_round()
            turns.played(count(server.model), job.cohort)
            return played

    Simulation(
        server, clients, {str(number): ClientProfile() for number in range(job.clients)}, job.cohort,
        logging.getLogger("appfl"), target_rounds=rounds,
    ).run()  # fmt: skip


if __name__ == "__main__":
    chosen_job, chosen = asked()
    play(chosen_job, chosen.rounds)
