"""The loss around the global models, and features by set of samples (FedCola, Fig. 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from edgefl.commands.analyse.answer import KindLandscape, Landscape
from edgefl.commands.analyse.embeddings import centre_distances, embedding_chart, unit_features
from edgefl.commands.analyse.trained_federation import Trained, is_model_sent
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.picture import write
from edgefl.errors import RunError
from edgefl.methods import Method
from edgefl.work import Pass
from edgefl.work.description import StepArgs
from edgefl.work.interpreter import step_of
from edgefl.work.steps import Context
from edgefl.work.torch_device import device_of, threads

SAMPLES = 256
"""Training samples of each kind, as in FedCola's figure."""
ITERATIONS = 20
"""Of the power iteration, for each eigenvector.  A choice."""
STEPS = [i / 10 for i in range(-10, 11)]
"""Places along each eigenvector, whose length is 1.  A choice."""
SPACE = "linear discriminants"

Losses = Callable[[], Iterable[Tensor]]
"""The losses of batches at the current values of the parameters, each with a graph of its own."""


def hessian_times(vector: Tensor, losses: Losses, parameters: Sequence[Tensor]) -> Tensor:
    """The Hessian of the mean loss times a vector ``[parameters]``: the gradient of the gradient's product with it."""

    def gradient(value: Tensor, *, again: bool) -> Tensor:
        found = torch.autograd.grad(value, parameters, create_graph=again, allow_unused=True, materialize_grads=True)
        return torch.cat([each.flatten() for each in found])

    return torch.stack([gradient(gradient(loss, again=True) @ vector, again=False) for loss in losses()]).mean(0)


def top_eigenvectors(
    losses: Losses, parameters: Sequence[Tensor], seed: int, iterations: int = ITERATIONS
) -> tuple[list[float], list[Tensor]]:
    """The Hessian's two eigenvalues of largest amount, and their eigenvectors ``[parameters]``, by power iteration.

    The second stays orthogonal to the first (deflation).
    """
    values, vectors = list[float](), list[Tensor]()
    size, start = parameters_to_vector(parameters).detach(), torch.Generator().manual_seed(seed)
    for _ in range(2):
        image = torch.randn(size.shape, generator=start, dtype=size.dtype).to(size.device)
        for _ in range(iterations):
            for known in vectors:
                image = image - (image @ known) * known
            vector = F.normalize(image, dim=0)
            image = hessian_times(vector, losses, parameters)
        values.append(float(vector @ image))
        vectors.append(vector)
    return values, vectors


@torch.no_grad()
def losses_around(losses: Losses, parameters: list[Tensor], vectors: Sequence[Tensor]) -> list[tuple[float, ...]]:
    """Place along the first vector, place along the second, and mean loss there; the parameters end as they began."""
    centre, found = parameters_to_vector(parameters), list[tuple[float, ...]]()
    for y, x in product(STEPS, STEPS):
        vector_to_parameters(centre + x * vectors[0] + y * vectors[1], parameters)
        found.append((x, y, fmean(float(loss) for loss in losses())))
    vector_to_parameters(centre, parameters)
    return found


def training_batches(trained: Trained, kind: str, pass_: Pass) -> Iterator[dict[str, Tensor]]:
    """Full batches of at most SAMPLES samples of a kind's clients, the largest client first."""
    left = SAMPLES
    for client in trained.largest_clients(kind, len(trained.setup.of_kind(kind))):
        source = trained.setup.clients.client(client)
        batch = max(1, min(pass_.batch, source.size(pass_)))
        for _, fields in source.batches(replace(pass_, batch=batch), trained.setup.seed):
            if (left := left - batch) >= 0:
                yield fields


def around_model(
    trained: Trained, kind: str, device: torch.device
) -> tuple[KindLandscape, list[tuple[float, ...]], dict[str, Tensor]]:
    """The landscape of a kind's global model, the losses around it, and the samples' unit features by modality."""
    work = Method.work(trained.setup.method, kind, 1)
    # a loss that is computed by chunks has no second derivative
    pass_ = replace(work.passes[0], args=cast(StepArgs, {**work.passes[0].args, "chunk": 0}))
    model: Any = trained.run.model(kind, merged=False).float().to(device)
    parameters = [parameter for name, parameter in model.named_parameters() if name in {*work.trainable}]
    batches = [{n: x.to(device) for n, x in batch.items()} for batch in training_batches(trained, kind, pass_)]
    step, ctx = step_of(pass_), Context(work, model, trained.setup.clients.server(), device)

    def losses() -> Iterator[Tensor]:
        for batch in batches:
            yield cast(Tensor, step.loss(ctx, batch, pass_.patterns[0], pass_))

    values, vectors = top_eigenvectors(losses, parameters, trained.setup.seed)
    grid = losses_around(losses, parameters, vectors)
    each = [unit_features(model, batch, device, fuses=False) for batch in batches]
    features = {modality: torch.cat([made[modality] for made in each]) for modality in each[0]}
    samples, loss = sum(len(batch["label"]) for batch in batches), grid[len(grid) // 2][2]
    return KindLandscape(kind=kind, samples=samples, loss=loss, eigenvalues=values), grid, features


def landscape(trained: Trained, kinds: Sequence[str], folder: Path, on_message: Callable[[str], None]) -> Landscape:
    """The task's loss of each kind's global model around its weights, without dropout, drawn in ``folder``.

    And linear discriminants of the samples' features by kind and modality.  Raises RunError if no kind's models reach
    the server.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    found, panels, rows, sets = list[KindLandscape](), list[Panel](), list[tuple[Any, ...]](), dict[str, Tensor]()
    device, labels = device_of(trained.scenario.executor.devices[0]), [f"{x:g}" if x % 0.5 == 0 else "" for x in STEPS]
    with threads(1), sdpa_kernel(SDPBackend.MATH):  # other kernels of attention have no second derivative
        for kind in (kind for kind in kinds if is_model_sent(trained, kind)):
            on_message(f"loss landscape of {kind} clients")
            one, grid, features = around_model(trained, kind, device)
            found.append(one)
            lines = [[loss for _, at, loss in grid if at == y] for y in STEPS]
            cells = [Series(label, STEPS, line) for label, line in zip(labels, lines, strict=True)][::-1]
            axes = ChartAxis("first eigenvector", names=labels), ChartAxis("second eigenvector")
            panels.append(Panel(f"loss, {kind}", "map", *axes, cells, value=ChartAxis("")))
            rows += [(panels[-1].title, *place) for place in grid]
            sets |= {f"{modality} of {kind}": value for modality, value in features.items()}
    if not found:
        raise RunError("no landscape: no clients' models reach the server")
    sets = {name: value for name, value in sets.items() if value.shape[1] == next(iter(sets.values())).shape[1]}
    if len(sets) > 1:
        names = np.repeat([*sets], [len(value) for value in sets.values()])
        flat = LinearDiscriminantAnalysis().fit_transform(torch.cat([*sets.values()]).double(), names)
        sets = {name: torch.from_numpy(flat[names == name]) for name in sets}
        places = [(name, *place[:2], 0.0) for name, place in zip(names, flat.tolist(), strict=True)]
        points = [(SPACE, name, 0, 0, x, y) for name, x, y, *_ in places]
        panels += embedding_chart(points, "", by_class=False).panels
        rows += [(name, x, y, None) for _, name, _, _, x, y in points]
    caption = "The loss along two eigenvectors of its Hessian, and linear discriminants of features."
    chart = Chart("landscape", trained.scenario.name, caption, panels, ["panel", "x", "y", "loss"], rows)
    write(chart, folder, ("png",))
    return Landscape(kinds=found, distances=centre_distances(SPACE, sets))
