"""Pre-training at the server: a tower's first values, before any client takes part.

A tower learns to classify public samples of its own modality, or is read from safetensors.  What it learned is kept in
the cache under the hash of all that it depends on, so that a comparison trains it once, and beside the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from edgefl import models, seeds
from edgefl.cost import compute_cost
from edgefl.data import Federation
from edgefl.errors import DataError, MethodError, suggestion
from edgefl.files import replacing
from edgefl.training.task import Node, Task
from edgefl.work import Item, Pass, Payload, TensorSpec, Work, digest

Part = Literal["embedding", "blocks", "norm"]


class TowerPretraining(BaseModel):
    """How one tower gets its first values: trained for ``epochs``, or read ``from`` a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    epochs: PositiveInt | None = Field(None, description="epochs over the public samples of the tower's modality")
    lr: PositiveFloat = Field(
        1e-3, description="learning rate of AdamW in the first epoch; it follows a cosine towards 0"
    )
    weight_decay: float = Field(0.0, ge=0, description="weight decay of AdamW")
    batch: PositiveInt = Field(32, description="samples per step")
    source: Path | None = Field(
        None,
        alias="from",
        description="instead of training: a .safetensors file, or a folder with one, such as an earlier run's",
    )
    parts: tuple[Part, ...] = Field(
        ("embedding", "blocks", "norm"),
        description="parts of the tower that take the values, the others start at random; LW-FedMML leaves the "
        "norm out",
    )

    @model_validator(mode="after")
    def _one_way(self) -> TowerPretraining:
        if (self.epochs is None) == (self.source is None):
            raise ValueError("a tower is pre-trained for some epochs, or read from a file: give epochs or from")
        if not self.parts:
            raise ValueError("parts is empty: nothing would be pre-trained")
        return self


class PretrainOptions(BaseModel):
    """The scenario's ``pretrain`` section: towers by modality; the others start at random."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: TowerPretraining | None = Field(
        None, description="first values of the image tower: {epochs: 5} or {from: FOLDER}; null: random"
    )
    text: TowerPretraining | None = Field(None, description="first values of the text tower; null: random")
    audio: TowerPretraining | None = Field(None, description="first values of the audio tower; null: random")

    @property
    def towers(self) -> dict[str, TowerPretraining]:
        """What is asked for, by modality."""
        asked = {m: getattr(self, m) for m in ("image", "text", "audio")}
        return {m: each for m, each in asked.items() if each is not None}


@dataclass
class Pretraining:
    """First values by name (``image.blocks.0...``), computed when they are first asked for.

    ``descriptions`` are the models of one modality each that the towers are trained in; ``told`` holds afterwards for
    each tower what it took and what it reached.
    """

    options: PretrainOptions
    descriptions: Mapping[str, Mapping[str, Any]]
    federation: Federation
    seed: int
    device: torch.device
    key: Any
    cache: Path | None = None
    on_message: Callable[[str], None] = lambda _: None
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    _values: dict[str, Tensor] | None = None

    def check(self) -> None:
        """Raises DataError for what can't be trained or read, before anything is."""
        for modality, asked in self.options.towers.items():
            if asked.source is not None:
                self._found(modality, asked.source)
                continue
            held = self.federation.server_samples.get("public", {}).get(modality, 0)
            if held < asked.batch:
                raise DataError(
                    f"pre-training the {modality} tower takes a batch of {asked.batch} public samples or more; the "
                    f"data have {held}: raise data.public"
                )

    def __call__(self) -> Mapping[str, Tensor]:
        """The values, on the CPU."""
        if self._values is None:
            self._values = {}
            for modality, asked in self.options.towers.items():
                found = self._read(modality, asked.source) if asked.source else self._trained(modality, asked)
                kept = {n: t for n, t in found.items() if n.split(".")[1] in asked.parts}
                if not kept:
                    raise DataError(f"pretrain.{modality}: no {' or '.join(asked.parts)} is among what was loaded")
                self._values |= kept
        return self._values

    def save(self, folder: Path) -> None:
        """Keep the values and what is told of them beside a run, to be read by ``from`` and by people."""
        values = {name: value.contiguous() for name, value in self().items()}
        safetensors.torch.save_file(values, folder / "pretrained.safetensors")
        (folder / "pretrained.json").write_text(json.dumps(self.told, indent=2) + "\n", encoding="utf-8")

    # --- reading -----------------------------------------------------------------------------------------------------

    def _found(self, modality: str, source: Path) -> tuple[Path, dict[str, str]]:
        """The file, and its names of the tower's tensors: ``image.blocks...``, ``KIND/image...`` or ``blocks...``.

        Raises DataError for a file without them, or with others.  Only the file's header is read.
        """
        path = _file(source)
        wanted = _tower(self.descriptions[modality], modality)
        try:
            with safetensors.safe_open(path, "pt") as file:
                names = {_plain(name, modality): name for name in sorted(file.keys(), reverse=True)}
                found = {name: names[name] for name in wanted if name in names}
                for name, called in found.items():
                    shape = tuple(file.get_slice(called).get_shape())
                    if shape != wanted[name].shape:
                        raise DataError(f"{path}: {called} is {shape}, but the model's is {wanted[name].shape}")
        except safetensors.SafetensorError as error:
            raise DataError(f"{path} is no safetensors file: {error}") from error
        lacking = [n for n in wanted if n not in found and n.split(".")[1] in self.options.towers[modality].parts]
        if lacking:
            raise DataError(f"{path} has no {lacking[0]}{suggestion(lacking[0], list(names))}")
        return path, found

    def _read(self, modality: str, source: Path) -> dict[str, Tensor]:
        """The tower's values in a file."""
        path, names = self._found(modality, source)
        with safetensors.safe_open(path, "pt") as file:
            found = {name: file.get_tensor(called).float() for name, called in names.items()}
        self.told[modality] = {"from": str(source), "tensors": len(found)}
        return found

    # --- training ----------------------------------------------------------------------------------------------------

    def _trained(self, modality: str, asked: TowerPretraining) -> dict[str, Tensor]:
        description = self.descriptions[modality]
        works = self._works(modality, asked)
        made_of = [[w.encode() for w in works], self.key, self.seed, *models.versions(), *models.code(description)]
        path = self.cache / "pretrained" / f"{digest(made_of)}.safetensors" if self.cache else None
        if path is not None and path.is_file():
            with safetensors.safe_open(path, "pt") as file:
                self.told[modality] = json.loads(file.metadata()["told"])
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        values, told = self._train(modality, works)
        self.told[modality] = told
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as draft:
                safetensors.torch.save_file(values, draft, {"told": json.dumps(told)})
        return values

    def _train(self, modality: str, works: list[Work]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        node, count = Node(self.federation, self.device), len(works)
        with torch.random.fork_rng([]):
            torch.manual_seed(seeds.key(self.seed, "initial", 1))
            module = models.build(self.descriptions[modality])
        values = {n: t.detach().clone() for n, t in (*module.named_parameters(), *module.named_buffers())}
        losses, flops = [], 0
        for epoch, work in enumerate(works):
            self.on_message(f"pre-training the {modality} tower: epoch {epoch + 1} of {count}")
            seed = seeds.key(self.seed, "pre-training", epoch)
            report = node.run(Task(work, values, None, seed, metered=True))
            values = dict(report.result.payloads["model"])
            losses.append(report.result.loss)
            assert report.measured is not None
            cost = compute_cost(work, self.federation.server(), report.measured.trace)
            flops += cost.forward_flops + cost.backward_flops
        told: dict[str, Any] = {"epochs": count, "losses": losses, "flops": flops}
        told["samples"] = self.federation.server_samples["public"][modality]
        if self.federation.server_samples.get("validation", {}).get(modality):
            pass_ = Pass("score-classify", "validation", (modality,), 100, False, {})
            scored = Work("pretrain", works[0].model, (), (pass_,), works[0].down)
            told["validation_accuracy"] = node.run(Task(scored, values, None, 0)).result.metrics["accuracy"]
        return values, told

    def _works(self, modality: str, asked: TowerPretraining) -> list[Work]:
        """Epochs over the public samples, alike but for their learning rates."""
        description = self.descriptions[modality]
        parameters = tuple(n for n, _ in models.on_meta(description).named_parameters())
        items = (Item(n, s.shape, s.dtype, f"pretrain/{n}") for n, s in _tensors(description).items())
        payload = Payload("model", tuple(items))
        pass_ = Pass("classify", "public", (modality,), asked.batch, True, {})
        work = Work("pretrain", description, parameters, (pass_,), (payload,), (payload,))
        found = []
        for epoch in range(asked.epochs or 0):
            share = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * epoch / (asked.epochs or 1))).item())
            optimizer = {"name": "adamw", "lr": asked.lr * max(share, 0.01), "weight_decay": asked.weight_decay}
            found.append(replace(work, optimizer=optimizer))
        return found


def _tensors(description: Mapping[str, Any]) -> dict[str, TensorSpec]:
    module = models.on_meta(description)
    return {n: TensorSpec.of(t) for n, t in (*module.named_parameters(), *module.named_buffers())}


def _tower(description: Mapping[str, Any], modality: str) -> dict[str, TensorSpec]:
    return {n: s for n, s in _tensors(description).items() if n.startswith(f"{modality}.")}


def _plain(name: str, modality: str) -> str:
    """A name in a file as a tower's own: without the client kind before it, with the tower's name."""
    plain = name.rsplit("/", 1)[-1]
    return plain if plain.startswith(f"{modality}.") else f"{modality}.{plain}"


def _file(source: Path) -> Path:
    """The file that is meant: itself, or the one in a folder.  Raises DataError."""
    path = source.expanduser()
    if path.is_dir():
        tried = [path / name for name in ("pretrained.safetensors", "weights.safetensors", "model.safetensors")]
        found = [each for each in tried if each.is_file()] or sorted(path.glob("*.safetensors"))
        if len(found) != 1 and not (found and found[0] in tried):
            raise DataError(f"{path} has {len(found)} .safetensors files: name the one to read")
        return found[0]
    if not path.is_file():
        raise DataError(f"there is no file or folder {path} to read pre-trained values from")
    return path


def descriptions_of(
    options: PretrainOptions, describe: Callable[[str], Mapping[str, Any]], modalities: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """The model of one modality that each tower is trained in.  Raises MethodError for a tower that isn't there."""
    for modality in options.towers:
        if modality not in modalities:
            have = ", ".join(modalities) or "none by modality (multiway)"
            raise MethodError(f"the model has no {modality} tower to pre-train; it has: {have}")
    return {modality: describe(modality) for modality in options.towers}
