"""Flower (package ``flwr[simulation]``) as a contestant: its FedAvg with two Ray workers of one core each.

    python -m bench.flower_run JOB --rounds N

A worker keeps its module between clients; the samples of a client are made when it first trains there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from bench.flower_client import client_app
from bench.jobs import Job, Turns, asked
from bench.plain import count, plain_model


class Paused(FedAvg):
    """FedAvg that waits for its turn before each round but the first."""

    def __init__(self, job: Job, turns: Turns, parameters: int):
        share = job.cohort / job.clients
        super().__init__(share, 0.0, job.cohort, min_available_nodes=job.clients)
        self.turns, self.parameters, self.arrived = turns, parameters, 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """End the round before, and begin this one."""
        if server_round > 1:
            self.turns.played(self.parameters, self.arrived)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Count the updates that arrived, and average them."""
        given = list(replies)
        if failed := [reply.error.reason for reply in given if reply.has_error()]:
            sys.exit(f"a client failed: {failed[0]}")
        self.arrived = sum(reply.has_content() for reply in given)
        return super().aggregate_train(server_round, given)


def server_app(job: Job, rounds: int, turns: Turns) -> ServerApp:
    """The server's side."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        module = plain_model(job)
        strategy = Paused(job, turns, count(module))
        strategy.start(grid, ArrayRecord(module.state_dict()), num_rounds=rounds)
        turns.played(strategy.parameters, strategy.arrived)

    return app


if __name__ == "__main__":
    job, chosen = asked()
    run_simulation(
        server_app(job, chosen.rounds, Turns()),
        client_app(job.name),
        job.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "num_gpus": 0, "logging_level": "error", "log_to_driver": False},
        },
    )
