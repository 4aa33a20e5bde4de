"""Pre-training at the server: the initial values of towers, before any client takes part.

A tower is trained to classify public samples of its modality, or its values are read from a safetensors file.  Trained
values are cached under a hash of everything they depend on, so that a comparison trains them once.  A run also stores
them in its folder, with the samples that they have seen, which another run that reads them must not hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypedDict

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from edgefl import models, registry, seeds
from edgefl.cost.client_cost import compute_cost
from edgefl.data import Federation
from edgefl.data.sample_ids import SeenSamples, check_unseen, decode, encode, public_samples
from edgefl.errors import DataError, MethodError, suggestion
from edgefl.memo import read_or_compute
from edgefl.modalities import MODALITIES
from edgefl.models.model import ModelDescription
from edgefl.registry.part_fields import Fields, FilePath
from edgefl.runs.contents import BEST_FILE
from edgefl.runs.durable import replace_file
from edgefl.training.assignment import Assignment
from edgefl.training.node import Node
from edgefl.work import Item, Pass, Payload, TensorSpec, Work, digest

Part = Literal["embedding", "blocks", "norm"]
_SEEN = "seen."
"""Before a modality: the key in a file's header under which the samples stand that its tower has seen."""
_OF_A_RUN = ("weights.safetensors", BEST_FILE)
"""What a run writes that began with its ``pretrained.safetensors``."""


class TowerPretraining(BaseModel):
    """Initial values of one tower: trained for ``epochs``, or read ``from`` a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    epochs: PositiveInt | None = Field(None, description="epochs over the public samples of the tower's modality")
    lr: PositiveFloat = Field(
        1e-3, description="learning rate of AdamW in the first epoch; it follows a cosine towards 0"
    )
    weight_decay: float = Field(0.0, ge=0, description="weight decay of AdamW")
    batch: PositiveInt = Field(32, description="samples per step")
    source: FilePath | None = Field(
        None,
        alias="from",
        description="read values instead of training: a .safetensors file, or a folder with one, such as a run's",
    )
    parts: tuple[Part, ...] = Field(
        ("embedding", "blocks", "norm"),
        description="parts of the tower that take the values, the others start at random; LW-FedMML leaves the "
        "norm out",
    )

    @model_validator(mode="after")
    def _check(self) -> TowerPretraining:
        if (self.epochs is None) == (self.source is None):
            raise ValueError("give either epochs, to train the tower, or from, to read its values from a file")
        if not self.parts:
            raise ValueError("parts is empty: no part of the tower would be pre-trained")
        return self


class PretrainStop(Fields):
    """When the pre-training of a tower ends before its last epoch."""

    patience: PositiveInt = Field(
        description="the tower keeps the values of its best epoch after so many epochs in a row that were no better; "
        "the score is the accuracy on public samples that are held out of its training"
    )
    after: NonNegativeInt = Field(
        0, description="first epochs after which the training doesn't end; they don't count for patience"
    )
    validation: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="share of the tower's public samples that is held out of its training, as whole groups",
    )


class PretrainOptions(Fields):
    """The scenario's ``pretrain`` section: towers by modality.  Other towers have random initial values."""

    seed: NonNegativeInt | None = Field(
        None,
        description="seed of the towers' training, so that runs with other seeds share it; null: the scenario's seed",
    )
    stop: PretrainStop | None = Field(
        None, description="when a tower's training ends early: {patience: 3}; null: after all its epochs"
    )

    image: TowerPretraining | None = Field(
        None, description="first values of the image tower: {epochs: 5} or {from: FOLDER}; null: random"
    )
    text: TowerPretraining | None = Field(None, description="first values of the text tower; null: random")
    audio: TowerPretraining | None = Field(None, description="first values of the audio tower; null: random")
    motion: TowerPretraining | None = Field(None, description="first values of the motion tower; null: random")

    @model_validator(mode="after")
    def _trains(self) -> PretrainOptions:
        given = [name for name in ("seed", "stop") if getattr(self, name) is not None]
        if given and not any(tower.epochs for tower in self.towers.values()):
            raise ValueError(f"{given[0]} needs a tower that is trained: image: {{epochs: 5}}")
        return self

    @property
    def towers(self) -> dict[str, TowerPretraining]:
        """Options of the towers that are pre-trained, by modality."""
        options = {m: getattr(self, m) for m in MODALITIES}
        return {m: tower for m, tower in options.items() if tower is not None}


TowerFacts = TypedDict(
    "TowerFacts",
    {
        "from": str, "tensors": int, "epochs": int, "losses": list[float | None], "flops": int, "samples": int,
        "validation_accuracy": float, "seed": int, "stopped": bool, "best_epoch": int, "best_accuracy": float,
        "accuracies": list[float], "held_out": int,
    },
    total=False,
)  # fmt: skip
"""How a tower got its values: the file and the number of tensors, or epochs, losses, FLOPs, samples and accuracy.

The accuracy is on validation samples, where these are of the public samples' data set.  With ``pretrain.seed`` that
seed.  With ``pretrain.stop`` also whether it ended early, the accuracy after each epoch on ``held_out`` public samples,
and the best epoch, whose values are kept.
"""


@dataclass
class Pretraining:
    """Initial values by name (``image.blocks.0...``), computed at the first call.

    ``descriptions`` are the models in which the towers are trained, each of one modality.  After the first call
    ``told`` holds facts about each tower: its file, or its epochs, losses, FLOPs, samples and validation accuracy.
    """

    options: PretrainOptions
    descriptions: Mapping[str, ModelDescription]
    federation: Federation
    seed: int
    device: torch.device
    cache: Path | None = None
    on_message: Callable[[str], None] = lambda _: None
    told: dict[str, TowerFacts] = field(default_factory=dict)
    _values: dict[str, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.options.seed is not None:
            self.seed = self.options.seed

    def check(self) -> None:
        """Raise DataError if a file doesn't fit its tower, or has seen what clients, validation or test hold, or if
        there are too few public samples; trains nothing."""
        for modality, options in self.options.towers.items():
            if options.source is not None:
                path, _ = self._find(modality, options.source)
                if seen := self._file_samples(modality, path):
                    check_unseen(self.federation, seen, f"pretrain.{modality}.from: {path}")
                continue
            samples = self.federation.server_samples.get("public", {}).get(modality, 0)
            why = ""
            if self.options.stop is not None and samples:
                train, held_out = self._split_public(modality, self.options.stop)
                if not held_out.server_samples["public"][modality]:
                    raise DataError(
                        f"pretrain.stop.validation: {self.options.stop.validation:.3g} of {samples} public {modality} "
                        "samples holds nothing out: give a larger share, or increase data.public"
                    )
                why = f" beside the {samples - (samples := train.server_samples['public'][modality])} held out"
            if samples < options.batch:
                raise DataError(
                    f"pre-training the {modality} tower needs at least one batch of {options.batch} public samples, "
                    f"but there are {samples}{why}: increase data.public"
                )

    def __call__(self) -> Mapping[str, Tensor]:
        """The values, ``{name: tensor}``, on the CPU.  Raises DataError for a file that doesn't fit its tower."""
        if self._values is None:
            self._values = {}
            for modality, options in self.options.towers.items():
                values = (
                    self._read(modality, options.source) if options.source else self._trained_values(modality, options)
                )
                selected = {n: t for n, t in values.items() if n.split(".")[1] in options.parts}
                if not selected:
                    raise DataError(f"pretrain.{modality}: the loaded values have no {' or '.join(options.parts)}")
                self._values |= selected
        return self._values

    def save(self, folder: Path) -> None:
        """Write ``pretrained.safetensors``, which ``from`` can read, and the facts ``pretrained.json`` to a folder.

        Raises RunError if a file can't be written.
        """
        values = {name: value.clone() for name, value in self().items()}
        seen = {
            _SEEN + modality: encode(samples)
            for modality, options in self.options.towers.items()
            if (samples := self._tower_samples(modality, options))
        }
        from edgefl.runs.checkpoints import write_tensors  # which imports all records

        write_tensors(folder / "pretrained.safetensors", values, seen or None)
        replace_file(folder / "pretrained.json", (json.dumps(self.told, indent=2) + "\n").encode())

    # --- reading -----------------------------------------------------------------------------------------------------

    def _find(self, modality: str, source: Path) -> tuple[Path, dict[str, str]]:
        """The file, and ``{name in the model: name in the file}`` of the tower's tensors.

        Names in the file are ``image.blocks...``, ``KIND/image...`` or ``blocks...``.  Raises DataError if tensors are
        missing or have other shapes.  Only the file's header is read.
        """
        path = _file(source)
        expected = _tower(self.descriptions[modality], modality)
        try:
            with safetensors.safe_open(path, "pt") as file:
                names = {_tower_name(name, modality): name for name in sorted(file.keys(), reverse=True)}
                found = {name: names[name] for name in expected if name in names}
                for name, name_in_file in found.items():
                    shape = tuple(file.get_slice(name_in_file).get_shape())
                    if shape != expected[name].shape:
                        raise DataError(
                            f"{path}: {name_in_file} has shape {shape}, but the model's has {expected[name].shape}"
                        )
        except safetensors.SafetensorError as error:
            raise DataError(f"{path} is not a safetensors file: {error}") from error
        missing = [n for n in expected if n not in found and n.split(".")[1] in self.options.towers[modality].parts]
        if missing:
            raise DataError(f"{path} has no {missing[0]}{suggestion(missing[0], list(names))}")
        return path, found

    def _read(self, modality: str, source: Path) -> dict[str, Tensor]:
        """The tower's values in a file, as float32."""
        path, names = self._find(modality, source)
        with safetensors.safe_open(path, "pt") as file:
            values = {name: file.get_tensor(name_in_file).float() for name, name_in_file in names.items()}
        self.told[modality] = {"from": str(source), "tensors": len(values)}
        return values

    def _tower_samples(self, modality: str, options: TowerPretraining) -> tuple[SeenSamples, ...]:
        """The samples that a tower's first values have seen; none if they are from a file that doesn't say it."""
        if options.source is None:
            return (public_samples(self.federation, modality),)
        return self._file_samples(modality, self._find(modality, options.source)[0])

    def _file_samples(self, modality: str, path: Path) -> tuple[SeenSamples, ...]:
        """The samples that a file of weights says to have seen, or the file beside it that a run began with.

        Raises DataError if what it says can't be read.
        """
        beside = path.with_name("pretrained.safetensors")
        for file in (path, *([beside] if path.name in _OF_A_RUN and beside.is_file() else [])):
            try:
                with safetensors.safe_open(file, "pt") as stored:
                    told = (stored.metadata() or {}).get(_SEEN + modality)
                if told is not None:
                    return decode(told)
            except (safetensors.SafetensorError, OSError, ValueError) as error:
                raise DataError(f"{file}: which samples its weights have seen can't be read ({error})") from error
        return ()

    # --- training ----------------------------------------------------------------------------------------------------

    def _trained_values(self, modality: str, options: TowerPretraining) -> dict[str, Tensor]:
        """The trained values, from the cache if they are there."""
        description = self.descriptions[modality]
        works = self._works(modality, options)
        stop = self.options.stop.model_dump() if self.options.stop else None
        made_of = [self.federation.public_digest(modality), stop, self.seed]
        code = [registry.package_digest("edgefl"), *models.code(description)]
        key = [[w.encode() for w in works], *made_of, *models.versions(), *code]
        if self.cache is None:
            values, self.told[modality] = self._train(modality, works)
            return values
        path = self.cache / "pretrained" / f"{digest(key)}.sealed"
        waits = f"another process pre-trains the {modality} tower: waiting for it"

        def train() -> bytes:
            values, facts = self._train(modality, works)
            return json.dumps(facts).encode() + b"\n" + safetensors.torch.save(values)

        content = read_or_compute(path, "a tower's first values", train, lambda: self.on_message(waits))
        told, _, tensors = content.partition(b"\n")
        self.told[modality] = json.loads(told)
        return safetensors.torch.load(tensors)

    def _split_public(self, modality: str, stop: PretrainStop) -> tuple[Federation, Federation]:
        """The public samples that a tower trains on, and those that are held out to stop it."""
        rng = seeds.generator(self.seed, "pre-training held out", [*MODALITIES].index(modality))
        return self.federation.split_public(modality, stop.validation, rng)

    def _train(self, modality: str, works: list[Work]) -> tuple[dict[str, Tensor], TowerFacts]:
        """Train the tower: its values, and the facts for ``told``."""
        stop, data, held_out = self.options.stop, self.federation, None
        if stop is not None:
            data, own = self._split_public(modality, stop)
            held_out = Node(own, self.device)
        node, count = Node(data, self.device), len(works)
        with seeds.seeding_globals(seeds.key(self.seed, "initial", 1)):
            module = models.build(self.descriptions[modality])
        values = {n: t.detach().clone() for n, t in (*module.named_parameters(), *module.named_buffers())}
        best, best_epoch = values, 0
        accuracies: list[float] = []
        losses: list[float | None] = []
        flops = 0
        for epoch, work in enumerate(works):
            self.on_message(f"pre-training the {modality} tower: epoch {epoch + 1} of {count}")
            seed = seeds.key(self.seed, "pre-training", epoch)
            report = node.run_assignment(Assignment(work.form, work.scalars, values, None, seed, metered=True))
            values = dict(report.payloads["model"])
            losses.append(report.loss)
            assert report.trace is not None
            cost = compute_cost(work, data.server(), report.trace)
            flops += cost.forward_flops + cost.backward_flops
            if stop is None or held_out is None:
                continue
            accuracies.append(self._accuracy(modality, held_out, works[0], values, "public"))
            if not best_epoch or accuracies[-1] > accuracies[best_epoch - 1]:
                best, best_epoch = values, epoch + 1
            if epoch + 1 - max(best_epoch, stop.after) >= stop.patience:
                break
        samples = data.server_samples["public"][modality]
        facts: TowerFacts = {"epochs": len(losses), "losses": losses, "flops": flops, "samples": samples}
        if self.options.seed is not None:
            facts["seed"] = self.seed
        if stop is not None:
            values = best
            facts |= {
                "stopped": len(losses) < count, "best_epoch": best_epoch, "best_accuracy": accuracies[best_epoch - 1],
                "accuracies": accuracies,
                "held_out": self.federation.server_samples["public"][modality] - samples,
            }  # fmt: skip
        held = self.federation.server_samples.get("validation", {}).get(modality)
        if held and self.federation.is_of_public_set("validation", modality):  # another set has other classes
            node = Node(self.federation, self.device)
            facts["validation_accuracy"] = self._accuracy(modality, node, works[0], values, "validation")
        return values, facts

    @staticmethod
    def _accuracy(
        modality: str, node: Node, work: Work, values: Mapping[str, Tensor], data: Literal["public", "validation"]
    ) -> float:
        """The accuracy of the tower with its classifier on a split of a node's server."""
        scoring = Work(
            "pretrain", work.model, (), (Pass("score-classify", data, (modality,), 100, False, {}),), work.down
        )
        return node.run_assignment(Assignment(scoring.form, scoring.scalars, values, None, 0)).metrics["accuracy"]

    def _works(self, modality: str, options: TowerPretraining) -> list[Work]:
        """One work per epoch over the public samples; the works differ in the learning rate only."""
        description = self.descriptions[modality]
        parameters = tuple(n for n, _ in models.on_meta(description).named_parameters())
        items = (Item(n, s.shape, s.dtype, f"pretrain/{n}") for n, s in _tensors(description).items())
        payload = Payload("model", tuple(items))
        pass_ = Pass("classify", "public", (modality,), options.batch, True, {})
        work = Work("pretrain", description, parameters, (pass_,), (payload,), (payload,))
        works = []
        for epoch in range(options.epochs or 0):
            share = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * epoch / (options.epochs or 1))).item())
            lr, decay = options.lr * max(share, 0.01), options.weight_decay
            works.append(replace(work, optimizer={"name": "adamw", "lr": lr, "weight_decay": decay}))
        return works


def _tensors(description: ModelDescription) -> dict[str, TensorSpec]:
    module = models.on_meta(description)
    return {n: TensorSpec.from_tensor(t) for n, t in (*module.named_parameters(), *module.named_buffers())}


def _tower(description: ModelDescription, modality: str) -> dict[str, TensorSpec]:
    return {n: s for n, s in _tensors(description).items() if n.startswith(f"{modality}.")}


def _tower_name(name: str, modality: str) -> str:
    """A tensor's name in the model for its name in a file: without a client kind, with the tower's name."""
    short = name.rsplit("/", 1)[-1]
    return short if short.startswith(f"{modality}.") else f"{modality}.{short}"


def _file(source: Path) -> Path:
    """The file to read: ``source`` itself, or the one in that folder.

    Raises DataError if there is none, or if a folder has several and none has a standard name.
    """
    path = source.expanduser()
    if path.is_dir():
        standard = [path / name for name in ("pretrained.safetensors", "weights.safetensors", "model.safetensors")]
        files = [file for file in standard if file.is_file()] or sorted(path.glob("*.safetensors"))
        if len(files) != 1 and not (files and files[0] in standard):
            raise DataError(f"{path} has {len(files)} .safetensors files: give the path of the one to read")
        return files[0]
    if not path.is_file():
        raise DataError(f"there is no file or folder {path} to read pre-trained values from")
    return path


def descriptions_of(
    options: PretrainOptions, describe: Callable[[str], ModelDescription], modalities: Collection[str]
) -> dict[str, ModelDescription]:
    """Descriptions of the models in which the towers are trained, by modality; each model has one modality.

    Raises MethodError if the model has no tower for a modality of ``options``.
    """
    for modality in options.towers:
        if modality not in modalities:
            towers = ", ".join(modalities) or "none by modality (multiway)"
            raise MethodError(f"the model has no {modality} tower to pre-train; it has: {towers}")
    return {modality: describe(modality) for modality in options.towers}
