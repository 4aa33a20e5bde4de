"""Features of the same samples by several models, in two dimensions (CreamFL, Figs. 3, 5, 6; PmcmFL, Fig. 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from edgefl.commands.analyse.answer import Embeddings, FeatureDistance
from edgefl.commands.analyse.trained_federation import Tensors, Trained, train_locally
from edgefl.data import Federation
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import of_run
from edgefl.drawing.charts.picture import MARKS, write
from edgefl.errors import RunError
from edgefl.models import on_meta
from edgefl.models.model import ModelDescription
from edgefl.planning.planner import Planner
from edgefl.runs.trained import trained_model
from edgefl.setup.compose import federation_of, predictor_of
from edgefl.work import Pass
from edgefl.work.torch_device import device_of, threads

MOST_BY_PCA = 90
"""Three times t-SNE's perplexity of 30, scikit-learn's default: fewer points have no neighbourhoods of that size."""
PROTOTYPES, STAR = "prototypes", MARKS.index("*")


def models_of(
    trained: Trained, kinds: Sequence[str], count: int, on_message: Callable[[str], None]
) -> Iterator[tuple[str, ModelDescription, Tensors]]:
    """The server's models and those of ``count`` clients of each kind: name, description, and tensors by name.

    A client that keeps its whole model has it as it left it.  Any other trains from the final weights, as in ``drift``.
    """
    method, planner = trained.setup.method, Planner(trained.setup, predictor_of(trained.scenario))
    scored = (method.evaluate(kind, trained.scenario.evaluation.final) for kind in kinds)
    for work in {work.kind: work for work in scored}.values():
        yield f"server, {work.kind}".removesuffix(", server"), work.model, trained.state.inputs(work)
    for kind in kinds:
        if (round := trained.last_round(kind)) is None:
            continue
        for client in trained.largest_clients(kind, count):
            on_message(f"features by {kind} clients, client {client}")
            work = method.client_work(kind, round, method.variant_of(kind, client))
            if {*method.setting.kinds[kind].trainable()} <= {*work.keep}:
                yield f"{kind} client {client}", work.model, trained.inputs(work, client, work.keep)
            else:
                _, before, after = train_locally(trained, planner, kind, client, round)
                yield f"{kind} client {client}", work.model, {**before, **after}


def shown_samples(federation: Federation, split: str, count: int, classes: int | None) -> Iterator[dict[str, Tensor]]:
    """Batches of ``count`` samples with each modality, of the first ``classes`` (None: of all), a caption per image.

    A modality is that of public pairs, or of pairs that clients have too, because several kinds of clients can read it.
    """
    patterns = sorted(
        federation.server_samples[split], key=lambda p: (split == "public" or p in federation.kinds, len(p))
    )
    pattern_of = {modality: pattern for pattern in patterns for modality in pattern.split("-")}
    for pattern in dict.fromkeys(pattern_of.values()):
        named, left = list[int](), count
        once = pattern in federation.kinds and "group" in federation.extras(pattern)
        pass_ = Pass("", split, (pattern,), 64, False, {"once": once})  # type: ignore[arg-type]
        for _, batch in federation.server().batches(pass_, 0):
            labels = batch["label"].tolist()
            named = [*dict.fromkeys([*named, *(label for label in labels if label >= 0)])][:classes]
            if chosen := [row for row, label in enumerate(labels) if label in named][:left]:
                left -= len(chosen)
                yield {name: x[chosen] for name, x in batch.items() if pattern_of.get(name, pattern) == pattern}


@torch.no_grad()
def unit_features(model: Any, batch: Mapping[str, Tensor], device: torch.device, *, fuses: bool) -> dict[str, Tensor]:
    """Features ``[samples, dim]`` of unit length, of each modality that model and batch have, and of both fused.

    Modalities of a pair may attend to each other, as they do where prototypes are computed.
    """
    given = {modality: batch[modality].to(device) for modality in model.modalities if modality in batch}
    features = dict(model.features(given)) if given else {}
    if fuses and len(features) == 2:
        features["fused"] = model.fuse(*features.values())
    return {space: F.normalize(value, dim=1).cpu() for space, value in features.items()}


def centre_distances(space: str, features: Mapping[str, Tensor]) -> list[FeatureDistance]:
    """Distances between the means of features ``[samples, dim]``, of each two models or sets."""
    centres = {name: value.mean(0) for name, value in features.items()}
    return [
        FeatureDistance(space=space, of=[a, b], distance=float(torch.linalg.vector_norm(centres[a] - centres[b])))
        for a, b in combinations(centres, 2)
    ]


def embeddings(
    trained: Trained, kinds: Sequence[str], clients: int, samples: int, classes: int | None, folder: Path,
    on_message: Callable[[str], None],
) -> Embeddings:  # fmt: skip
    """Unit features of public samples, or without these of the final evaluation's, drawn in ``folder``, and distances.

    Equal features have equal places.  Raises RunError if all are equal.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    federation, device = federation_of(trained.scenario, on_message), device_of(trained.scenario.executor.devices[0])
    split = "public" if federation.server_samples.get("public") else trained.scenario.evaluation.final
    shown = list(shown_samples(federation, split, samples, classes))
    tables = {address.removeprefix(f"table/{PROTOTYPES}."): table for address, table in trained.state.tensors.items()}
    spaces: dict[tuple[str, int], dict[str, list[tuple[Tensor, Tensor]]]] = {}
    distances, points = list[FeatureDistance](), list[tuple[Any, ...]]()
    with threads(1):
        for name, description, tensors in models_of(trained, kinds, clients, on_message):
            known = on_meta(description).state_dict()
            own = {f"{name}/{n}": tensor for n, tensor in tensors.items() if n in known}
            model: Any = trained_model(trained.run.path, {name: description}, name, own).float().to(device)
            for batch in shown:
                for space, value in unit_features(model, batch, device, fuses="fused" in tables).items():
                    parts = spaces.setdefault((space, value.shape[1]), {}).setdefault(name, [])
                    parts.append((value, batch["label"]))
        for (space, width), made in spaces.items():
            labels = torch.cat([label for _, label in next(iter(made.values()))]).tolist()
            found = {name: torch.cat([part for part, _ in parts]) for name, parts in made.items()}
            table = tables.get(space, torch.empty(0, width))
            there = [c for c in sorted({*labels}) if c < len(table) and bool(table[c].any())]
            stacked = torch.cat([*found.values(), F.normalize(table[there].float(), dim=1)])
            different, index = torch.unique(stacked, dim=0, return_inverse=True)
            if len(different) < 2:
                raise RunError(f"no embeddings: the models have one {space} feature for all {split} samples")
            near = TSNE(init="pca", random_state=trained.setup.seed, n_jobs=1)
            many = len(different) > MOST_BY_PCA
            places = near.fit_transform(different)[index] if many else PCA(2).fit_transform(stacked)
            rows = [(name, *row) for name in found for row in enumerate(labels)] + [(PROTOTYPES, c, c) for c in there]
            points += [(space, *row, *place) for row, place in zip(rows, places.tolist(), strict=True)]
            distances += centre_distances(space, found)
    write(embedding_chart(points, trained.scenario.name, classes is not None), folder, ("png",))
    return Embeddings(split=split, distances=distances)


def embedding_chart(points: Sequence[tuple[Any, ...]], title: str, by_class: bool) -> Chart:
    """A panel for each space: a colour for each model, or one for each class and a mark for each model."""
    columns, axis, panels = ["space", "model", "sample", "class", "x", "y"], ChartAxis(""), list[Panel]()
    models, groups = (list(dict.fromkeys(p[i] for p in points)) for i in (1, 3 if by_class else 1))
    marks = {m: STAR if m == PROTOTYPES else i % STAR * by_class for i, m in enumerate(models)}
    names = [", ".join(m for m in models if marks[m] == mark) * by_class for mark in range(len(MARKS))]
    for space in dict.fromkeys(p[0] for p in points):
        series = []
        for number, group in enumerate(groups):
            own = [p for p in points if p[0] == space and p[3 if by_class else 1] == group]
            symbols = [marks[p[1]] for p in own]
            sizes = [1000 if symbol == STAR else 1 for symbol in symbols]  # so that prototypes are seen among others
            name, (x, y) = f"class {group}" if by_class else group, ([p[i] for p in own] for i in (4, 5))
            series += [Series(name, x, y, of_run(number), symbols=symbols, sizes=sizes)] * bool(own)
        panels.append(Panel(space, "points", axis, axis, series, symbols=names, legend=True))
    return Chart("embeddings", title, "Features of the same samples by several models.", panels, columns, points)
