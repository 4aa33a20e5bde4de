"""The papers' tables made small: their rows keep what they are about, and lose in size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import miniatures

from tools.paper_tables.published_tables import PrintedPaper
from tools.paper_tables.training_tables import scenarios_of

WIDTH, HEADS, SIDE, PATCH, WORDS = 8, 2, 16, 8, 60
"""Of the towers, the pictures and the vocabulary."""
WEIGHTS = {"vit": "vit.safetensors", "hf-vit": "hf-vit", "ast": "ast", "distilbert": "distilbert"}
"""Files of towers that start from published weights; the smallest ResNet has 47 MB, so that those start at random."""
KEPT = {"training.epochs", "model.dimension", "method.model.dimension", "model.image.layers"}
"""Sizes that some rows are about."""
Fields = dict[str, Any]
"""Values by dotted path."""


def write_sets(root: Path) -> None:
    """Write every data set of the papers' tables in its published format."""
    miniatures.cifar100(root / "cifar100", 500, 20, classes=20)
    miniatures.ag_news(root / "ag-news", 2000, 20)
    miniatures.medical_abstracts(root / "medical-abstracts", 600, 20)
    miniatures.flickr(root / "flickr30k", 40, test=8)
    miniatures.coco(root / "coco", train=40, val=8)
    miniatures.vqa(root / "vqa", 400, 10, more=35)
    miniatures.advance(root / "advance", 13, 16)
    for name in ("organamnist", "organcmnist"):
        miniatures.medmnist(root / name / f"{name}.npz", of_class=40)
    miniatures.mtsamples(root / "mtsamples", 500, specialties=20)


def write_weights(folder: Path) -> None:
    """Write the weights from which towers start, in the published formats."""
    side = {"image_size": SIDE, "patch_size": PATCH}
    bert = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH}
    miniatures.vit(
        folder / "vit.safetensors", img_size=SIDE, patch_size=PATCH, embed_dim=WIDTH, depth=2, num_heads=HEADS
    )
    miniatures.of_transformers(folder / "hf-vit", "ViT", **side, **bert)
    miniatures.of_transformers(folder / "ast", "AST", **bert, num_hidden_layers=6, frequency_stride=64, time_stride=64)
    miniatures.of_transformers(
        folder / "distilbert", "DistilBert", vocab_size=WORDS, dim=WIDTH, n_heads=HEADS, hidden_dim=4 * WIDTH
    )


def small_paper(paper: PrintedPaper, name: str, weights: Path | None = None) -> PrintedPaper:
    """The paper with one of its tables, whose rows also change what makes them small."""
    table = paper.tables[name]
    rows = dict(table.rows)
    for row in scenarios_of(table):
        small = dict(sizes(row.scenario.to_data(), table.changes(row.name), weights))
        rows[row.name] = rows[row.name].model_copy(update={"set": {**rows[row.name].set, **small}})
    return paper.model_copy(update={"tables": {name: table.model_copy(update={"rows": rows})}})


def sizes(row: Fields, changed: Fields, weights: Path | None) -> Iterator[tuple[str, Any]]:
    """Fields that make a row small, but for those that it is about.

    The smallest ResNet has 11 million parameters, so that only a row without changes, or about their layers, has one.
    """
    small = dict(_data(row["data"]))
    replaced = bool(changed) and "model.image.layers" not in changed
    small |= dict(_model("model", row["model"], weights, replaced, "stages" in row["schedule"]))
    if isinstance(row["method"].get("model"), dict):
        small |= dict(_model("method.model", row["method"]["model"], weights, replaced))
    small |= dict(_course(row))
    yield from ((path, value) for path, value in small.items() if path not in KEPT & changed.keys())


def _data(data: Fields) -> Iterator[tuple[str, Any]]:
    yield "data.size", SIDE
    if data["vocabulary"] == "minilm":
        yield "data.vocabulary", WORDS
    yield "data.samples", 6
    if data["public"]:
        yield "data.public", 4
    if set(data["clients"]) == {"image-audio"}:
        yield "data.clients.image-audio", 10
    if data.get("draw"):
        yield "data.draw", {each: 10 if each == "test" else 600 for each in data["draw"]}
    if data["test"] >= 1:
        yield "data.test", 8


def _model(
    at: str, model: Fields, weights: Path | None, replaced: bool, staged: bool = False
) -> Iterator[tuple[str, Any]]:
    for part in ("image", "text", "audio", "multiway"):
        if not (tower := model[part]):
            continue
        where, kind = f"{at}.{part}", tower.get("tower", "multiway")
        if kind == "resnet" and replaced:
            yield where, {"tower": "vit", "blocks": 2, "width": WIDTH, "heads": HEADS, "patch": PATCH}
        elif kind == "resnet":
            yield f"{where}.layers", 18
        elif kind == "gru":
            yield f"{where}.embedding", WIDTH
            yield f"{where}.hidden", WIDTH
        else:
            yield f"{where}.width", WIDTH
            yield f"{where}.heads", HEADS
            if not staged:  # each stage has its blocks
                yield f"{where}.blocks", 2
            if "patch" in tower and kind != "ast":
                yield f"{where}.patch", min(tower["patch"], PATCH)
            if kind == "ast":
                yield f"{where}.stride", 64
        if tower.get("weights"):
            yield f"{where}.weights", str(weights / WEIGHTS[kind]) if weights and kind in WEIGHTS else None
    if model["dimension"]:
        yield f"{at}.dimension", WIDTH
    if model["projection"]:
        yield f"{at}.projection.hidden", [WIDTH] * len(model["projection"]["hidden"])
    if model["fusion"]["hidden"]:
        yield f"{at}.fusion.hidden", [WIDTH]


def _course(row: Fields) -> Iterator[tuple[str, Any]]:
    """Few rounds, in which every stage and every phase of a method has one."""
    schedule, method, rounds = row["schedule"], row["method"], 1
    if warmup := method.get("warmup"):
        rounds = 2 + bool(warmup["heat"])
        yield "method.warmup.rounds", 1
        yield "method.warmup.heat", min(warmup["heat"], 1)
    if method.get("matching"):
        rounds = 2
        yield "method.matching.round", 2
        for epochs in ("epochs", "clip_epochs", "mse_epochs"):
            yield f"method.matching.{epochs}", 1
    if "stages" in schedule:
        rounds = schedule["stages"]
        if isinstance(schedule["allocation"], list):
            rounds = sum(map(bool, schedule["allocation"]))
            yield "schedule.allocation", [int(bool(each)) for each in schedule["allocation"]]
    if row["evaluation"]["reported"]:
        rounds = max(rounds, 2)
        yield "evaluation.reported.last", 2
    yield "schedule.rounds", rounds
    if method.get("pairs"):
        yield "method.pairs", min(max(method["pairs"] // 2500, 4), 20)
    if row["data"]["clients"] == {"image-audio": 40}:
        yield "round.cohort", row["round"]["cohort"] // 4
    if row["training"]["lr_schedule"]["name"] == "step":
        yield "schedule.rounds", 2
        yield "training.lr_schedule.every", [1]
    yield "training.epochs", 1
    yield "training.accumulation", 1
    if row["training"]["precision"] == "float16":
        yield "training.precision", "bfloat16"
    yield "evaluation.pairs", 40
    yield "evaluation.fold", 4
    yield "executor.device", "cpu"
    if row["training"]["attention"] == "efficient":  # which only a GPU has
        yield "training.attention", "device"
    if memory := row["fleet"]["budgets"]["memory"]:
        (_, few), (large, many) = sorted(memory.items(), key=lambda limit: int(limit[0]))
        yield "fleet.budgets.memory", {"64KiB": few, large: many}  # too little for the whole small model too
