"""The trained towers of a run, as folders of transformers and PEFT."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edgefl.errors import MethodError, RunError
from edgefl.runs import Run
from edgefl.runs.changed import raise_run_errors
from edgefl.runs.contents import read_bytes, read_json
from edgefl.runs.durable import writing


@raise_run_errors
def write_towers(run: Run, target: Path, to: str) -> list[str]:
    """Write the towers of a finished run that are models of transformers; return the files."""
    from safetensors import SafetensorError

    from edgefl.models import peft_folder

    weights, moved = run.weights(), run.scenario.get("pretrain") or {}
    if run.scenario.get("adapter", {}).get("weights"):  # whose layers may have changed what doesn't train here
        moved = dict.fromkeys(run.scenario["model"], True)
    found = [
        (kind, modality)
        for kind, model in run.models.items()
        for modality, tower in model["towers"].items()
        if peft_folder.of_transformers(tower) is not None
    ]
    if not found:
        names = {str(t.get("tower", m)) for model in run.models.values() for m, t in model["towers"].items()}
        raise MethodError(f"no tower of {run.path} is a model of transformers: it has {', '.join(sorted(names))}")
    files = []
    for kind, modality in found:
        if to == "peft" and any(name.startswith(f"export/{kind}/") for name in weights):
            raise MethodError(
                f"the method of {run.path} gives {kind} other weights than its adapter's: --to transformers"
            )
        place = target if len(found) == 1 else target / kind / modality
        model: Any = run.model(kind, merged=to == "transformers")
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=place, prefix=".partial-") as partial:
                try:
                    if to == "transformers":
                        peft_folder.write_model(model, modality, Path(partial))
                    else:
                        source = None if moved.get(modality) else run.scenario["model"][modality].get("weights")
                        peft_folder.write_adapter(model, modality, Path(partial), source)
                    if modality == "text" and run.tokenizer_path is not None:
                        tokens = run.models[kind]["towers"][modality]["tokens"]
                        _write_tokenizer(run.tokenizer_path, tokens, Path(partial))
                except SafetensorError as error:  # of a full disk, too
                    raise RunError(f"can't write {place}: {error}") from error
                for file in sorted(path for path in Path(partial).rglob("*") if path.is_file()):
                    final = place / file.relative_to(partial)
                    final.parent.mkdir(exist_ok=True)
                    os.replace(file, final)
                    files.append(str(final))
    return files


def _write_tokenizer(file: Path, tokens: int, folder: Path) -> None:
    """Write a run's tokenizer for ``AutoTokenizer``, which with ``padding="max_length"`` gives what the run read."""
    padding = read_json(file).get("padding") or {}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": tokens}
    (folder / "tokenizer.json").write_bytes(read_bytes(file))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": padding.get("pad_token")}))
