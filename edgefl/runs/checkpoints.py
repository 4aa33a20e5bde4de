"""Checkpoints: tensors and plain state after a finished round, complete or absent.

A checkpoint is written into a hidden folder, brought to the disk and renamed; it is taken away by the same way
backwards.  Its content carries checksums, so that what a disk spoiled is found before a run continues from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from edgefl.errors import RunError
from edgefl.files import replacing
from edgefl.runs.durable import replace_file, writing

KEEP = 2
"""Checkpoints that stay: the last ones."""
KEPT = "kept:"
"""Prefix of the tensors that clients keep between rounds (``kept:<client>:<name>``); the server's own have none."""
_NAME = re.compile(r"round-(\d{6,})")


def write(folder: Path, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write the checkpoint of ``round`` and take away all but the last two.  Raises RunError, TypeError."""
    text = _json(state)
    final = folder / f"round-{round:06d}"
    with writing(final), replacing(final, durable=True) as partial:
        folder.mkdir(exist_ok=True)
        for left in folder.glob(".partial-*"):
            shutil.rmtree(left)
        partial.mkdir()
        aliases = write_tensors(partial / "state.safetensors", tensors)
        manifest = {
            "format": 1,
            "round": round,
            "tensors_blake2b": _file_digest(partial / "state.safetensors"),
            "state_blake2b": _digest(text),
            "aliases": aliases,
            "state": state,
        }
        replace_file(partial / "state.json", json.dumps(manifest).encode())
        if final.exists():
            _remove(final)
    with writing(folder):
        for old in rounds(folder)[:-KEEP]:
            _remove(folder / f"round-{old:06d}")
    return final


def latest(folder: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint that is whole, or None if there never was one.

    A damaged one is passed over with a warning.  Raises RunError if all are damaged.
    """
    available = rounds(folder)
    for round in reversed(available):
        path = folder / f"round-{round:06d}"
        try:
            return round, *_read(path)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            warnings.warn(f"the checkpoint {path} is damaged and passed over: {error}", RuntimeWarning, stacklevel=2)
    if available:
        raise RunError(
            f"every checkpoint in {folder} is damaged (rounds {', '.join(map(str, available))});"
            " remove that folder to begin this run again at its first round"
        )
    return None


def rounds(folder: Path) -> list[int]:
    """The rounds that have a checkpoint, ascending."""
    names = (_NAME.fullmatch(entry.name) for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name[1]) for name in names if name)


def drop_after(folder: Path, round: int) -> None:
    """Remove the checkpoints of later rounds: a continued run would otherwise mix two pasts."""
    with writing(folder):
        for later in rounds(folder):
            if later > round:
                _remove(folder / f"round-{later:06d}")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Write a safetensors file in one step; returns ``{name: name}`` of equal views, which are stored once.

    Tensors of different names may be one and the same (versions of a server's state share what did not change).
    """
    stored: dict[str, Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        storage = tensor.untyped_storage().data_ptr()
        view = (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if storage and view in first:
            aliases[name] = first[view]
            continue
        first[view] = name
        # the format refuses overlapping views, and a file from a GPU must open without one
        tensor = tensor.cpu().contiguous()
        stored[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    with writing(path), replacing(path, durable=True) as partial:
        try:
            save_file(stored, partial)
        except SafetensorError as error:  # its way to report a full disk
            raise RunError(f"can't write {path}: {error}") from error
    return aliases


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    manifest = json.loads((path / "state.json").read_bytes())
    if manifest["format"] != 1:
        raise ValueError(f"format {manifest['format']!r} is not one that this version reads")
    if _digest(_json(manifest["state"])) != manifest["state_blake2b"]:
        raise ValueError("state.json doesn't have its checksum")
    if _file_digest(path / "state.safetensors") != manifest["tensors_blake2b"]:
        raise ValueError("state.safetensors doesn't have its checksum")
    tensors: dict[str, Tensor] = load_file(path / "state.safetensors")
    tensors.update({name: tensors[other] for name, other in manifest["aliases"].items()})
    return tensors, manifest["state"]


def _remove(path: Path) -> None:
    # renamed first: a kill in the middle must not leave a folder that looks like a checkpoint
    gone = path.with_name(f".partial-removed-{path.name}")
    if gone.exists():
        shutil.rmtree(gone)
    os.rename(path, gone)
    shutil.rmtree(gone)


def _json(state: Any) -> str:
    _string_keys(state)
    return json.dumps(state, sort_keys=True)


def _string_keys(value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):  # json would write 3 and give back "3"
                raise TypeError(f"a checkpoint's keys are strings, not {key!r}")
            _string_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _string_keys(item)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
