"""Gaps between data sets: how far mean CLIP features of one modality lie from those of the pairs (FedCola, Fig. 4).

Features aren't normalised, because gaps of about 10 as published need that.  The size of the paper's CLIP is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgefl.commands.analyse.answer import Gap, Gaps
from edgefl.data import Federation
from edgefl.errors import RunError
from edgefl.models.towers.library_model import quiet

FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "model.safetensors")
BATCH = 64
"""Samples at a time.  A choice: CLIP's largest model takes about a gigabyte for them."""
Clip = tuple[Any, Any, Any]
"""Preprocessing of pictures, tokenizer and model, of transformers."""


def pairs_of(kinds: Sequence[str]) -> dict[str, str]:
    """For ``image`` and ``text``, if there are such clients, the kind whose pairs have this modality."""
    found = {m: next((kind for kind in kinds if m in kind.split("-") and kind != m), "") for m in ("image", "text")}
    return {modality: pairs for modality, pairs in found.items() if pairs and modality in kinds}


def read_clip(folder: Path | None, kinds: Sequence[str]) -> Clip:
    """The CLIP of a folder.  Raises RunError if it can't be read, or if there are no gaps between these kinds."""
    if not pairs_of(kinds):
        raise RunError(
            f"no gaps: they are of image or text clients to clients with pairs, not of {' and '.join(kinds)}"
        )
    if folder is None or (missing := [name for name in FILES if not (folder / name).is_file()]):
        found = f"{folder} lacks {', '.join(missing)}; " if folder is not None else ""
        raise RunError(f"gaps needs --encoder FOLDER: {found}a CLIPModel of transformers has {', '.join(FILES)}")
    try:
        with quiet():
            from transformers import AutoTokenizer, CLIPImageProcessor, CLIPModel

            read: Any = CLIPModel.from_pretrained
            model, told = read(folder, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True)
            parts = [
                part.from_pretrained(folder, local_files_only=True) for part in (CLIPImageProcessor, AutoTokenizer)
            ]
    except Exception as error:  # the library raises many classes
        raise RunError(f"--encoder {folder}: {' '.join(str(error).split())[:200]}") from error
    if absent := sorted([*told["missing_keys"], *(entry[0] for entry in told["mismatched_keys"])]):
        raise RunError(f"--encoder {folder}: there is no tensor for {absent[0]} as its config.json says")
    return parts[0], parts[1], model.eval()


@torch.no_grad()
def mean_feature(clip: Clip, federation: Federation, kind: str, modality: str) -> tuple[Tensor, int, str]:
    """The mean feature ``[dim]`` in float64 of what clients of a kind hold of a modality, of how many samples, and set.

    A picture with several captions counts once, and CLIP cuts long texts.  Raises RunError if no client has any.
    """
    processor, tokenizer, model = clip
    part, rows = federation.held_rows(kind, modality)
    places: Any = part.arrays[modality][rows] if modality in part.arrays else rows
    places = np.unique(places) if modality == "image" else places
    if not len(places):
        raise RunError(f"no gaps: no sample of the {kind} clients has a {modality}")
    texts, most = (
        json.loads(part.collection.text("texts.json"))["texts"],
        model.config.text_config.max_position_embeddings,
    )
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    for start in range(0, len(places), BATCH):
        some = places[start : start + BATCH]
        if modality == "image":
            pixels = part.arrays["images"][some]
            colour = torch.from_numpy(np.repeat(pixels, 3 if pixels.shape[1] == 1 else 1, 1))
            given = processor(images=colour, input_data_format="channels_first", return_tensors="pt")
            read = model.visual_projection(model.vision_model(**given.to(model.device)).pooler_output)
        else:
            said = [texts[place] for place in some]
            given = tokenizer(said, padding="max_length", truncation=True, max_length=most, return_tensors="pt")
            read = model.text_projection(model.text_model(**given.to(model.device)).pooler_output)
        total = total + read.double().sum(0)
    return total / len(places), len(places), part.dataset


def gaps(clip: Clip, federation: Federation, kinds: Sequence[str], tell: Callable[[str], None]) -> Gaps:
    """The gap of each modality, the L2 norm of the difference of two mean features, and their sum."""
    rows = []
    for modality, pairs in pairs_of(kinds).items():
        tell(f"CLIP features of {modality} and {pairs} clients")
        own, samples, name = mean_feature(clip, federation, modality, modality)
        other, paired, _ = mean_feature(clip, federation, pairs, modality)
        gap = float(torch.linalg.vector_norm(own - other))
        rows.append(Gap(modality=modality, set=name, samples=samples, pair_samples=paired, gap=gap))
    return Gaps(rows=rows, total=fsum(row.gap for row in rows))
