"""The clients' side of the contestant Flower, in a module of its own because Ray's workers import it."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from bench.jobs import JOBS, LEARNING_RATE
from bench.plain import plain_model, samples_of, train


@cache
def worker(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The module and optimizer of this process."""
    torch.set_num_threads(1)
    module = plain_model(JOBS[name]).train()
    return module, torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, fused=True)


@cache
def samples(name: str, client: int) -> tuple[Tensor, Tensor]:
    """A client's samples, kept in this process."""
    return samples_of(JOBS[name], client)


def fit(name: str, message: Message, context: Context) -> Message:
    """One epoch of a job on a client's samples."""
    module, optimizer = worker(name)
    x, y = samples(name, int(context.node_config["partition-id"]))
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(module, optimizer, x, y, JOBS[name].batch)
    arrays, metrics = ArrayRecord(module.state_dict()), MetricRecord({"num-examples": len(x)})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def client_app(name: str) -> ClientApp:
    """The app of a job's clients."""
    app = ClientApp()

    @app.train()
    def train_client(message: Message, context: Context) -> Message:
        return fit(name, message, context)

    return app
