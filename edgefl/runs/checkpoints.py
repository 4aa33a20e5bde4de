"""Checkpoints: tensors and JSON state after a finished round, written atomically.

A checkpoint is written into a hidden folder, synced to the disk where that is asked for, and renamed.  To remove one,
it is renamed to a hidden folder first.  Checksums of both files detect damage before a run continues from a checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

from safetensors import SafetensorError

from edgefl.errors import RunError
from edgefl.files import replacing
from edgefl.runs import kept
from edgefl.runs.contents import KEPT
from edgefl.runs.digests import TableFacts, file_digest, text_digest
from edgefl.runs.durable import replace_file, writing
from edgefl.runs.folders import Table

if TYPE_CHECKING:  # a finished run is shown without torch
    from torch import Tensor

KEEP = 2
"""Number of checkpoints that a run under way keeps at least: the newest, and one to go on from if that is damaged.
Each takes the size of the server's state on the disk."""
WEIGHTS = "weights.safetensors"
"""The file of a run's final weights, in the folder above the checkpoints'."""
SHARED: Final = "in_weights"
"""Field of a manifest: the tensors that are read from the run's final weights."""
_SHARING = (SHARED, "weights", "weights_blake2b")
_OWN = ("round", "tensors_blake2b", "state_blake2b", "aliases", "state")
_NAME = re.compile(r"round-(\d{6,})")


class Manifest(TypedDict):
    """What ``state.json`` of a checkpoint holds."""

    round: int
    tensors_blake2b: str
    state_blake2b: str
    aliases: dict[str, str]
    state: dict[str, object]
    made_of: Mapping[str, object]
    inputs: dict[str, object]
    records: dict[Table, TableFacts]
    written_since_boot: NotRequired[str]
    in_weights: NotRequired[list[str]]
    weights: NotRequired[str]
    weights_blake2b: NotRequired[str]


def write(
    folder: Path,
    round: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, object],
    facts: Mapping[str, object],
    keep: int = KEEP,
    *,
    synced: bool = True,
    besides: int | None = None,
) -> Path:
    """Write the checkpoint of ``round``, remove all but the newest ``keep``, and return its folder.

    ``facts`` (JSON data) go beside the state; ``manifest_of`` returns them.  One that isn't ``synced`` may be damaged
    by a power cut; ``besides`` is the round of the last one that was, which is kept too.
    Raises RunError if it can't be written, TypeError if ``state`` has a key that isn't text or a value JSON can't hold.
    """
    final = _write(folder, round, tensors, state, facts, synced=synced)
    keep_newest(folder, keep, besides)
    return final


def _write(
    folder: Path,
    round: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, object],
    facts: Mapping[str, object],
    *,
    synced: bool = True,
) -> Path:
    """Write the checkpoint of ``round`` in place of one that is there, and return its folder."""
    text = _json(state)
    final = folder / name(round)
    with writing(final), replacing(final, durable=True, synced=synced) as partial:
        folder.mkdir(exist_ok=True)
        for leftover in folder.glob(".partial-*"):
            shutil.rmtree(leftover)
        partial.mkdir()
        aliases = write_tensors(partial / "state.safetensors", tensors, synced=synced)
        manifest = {
            "round": round,
            "tensors_blake2b": file_digest(partial / "state.safetensors")["blake2b"],
            "state_blake2b": text_digest(text.encode()),
            "aliases": aliases,
            **facts,
            "state": state,
        }
        replace_file(partial / "state.json", json.dumps(manifest).encode(), synced=synced)
        if final.exists():
            remove(final)
    return final


def share_weights(folder: Path, weights: Path) -> None:
    """Take out of the last checkpoint the tensors that the file ``weights`` holds too, bit for bit.

    They are read from there afterwards; ``whole`` puts them back.  Raises RunError if a file can't be written.
    """
    available = rounds(folder)
    if not available or not weights.is_file():
        return
    path = folder / name(available[-1])
    with writing(path):
        manifest = manifest_of(path)
        with _reading(path / "state.safetensors") as own, _reading(weights) as final:
            stored, finals = set(own.keys()), set(final.keys())
            of = {**{each: each for each in stored}, **manifest["aliases"]}
            shared = {
                each for each, other in of.items()
                if each in finals and _same(own.get_tensor(other), final.get_tensor(each))
            }  # fmt: skip
            if manifest.get(SHARED) or not shared:
                return
            tensors = {each: own.get_tensor(other).clone() for each, other in of.items() if each not in shared}
        sharing = {SHARED: sorted(shared), "weights": weights.name, "weights_blake2b": file_digest(weights)["blake2b"]}
        facts = {key: value for key, value in manifest.items() if key not in _OWN}
    _write(folder, available[-1], tensors, manifest["state"], facts | sharing)


def _reading(path: Path) -> Any:
    """An open file of tensors.  Raises RunError if it can't be opened, such as at the limit of open files."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, "pt")
    except (OSError, RuntimeError, SafetensorError) as error:
        raise RunError(f"can't read {path}: {error}") from error


def whole(folder: Path, round: int) -> None:
    """Put back what ``share_weights`` took out of the checkpoint of ``round``, before the weights are removed.

    Raises RunError if it can't be written or read.
    """
    path = folder / name(round)
    if not path.is_dir():
        return
    try:
        manifest = manifest_of(path)
        if SHARED not in manifest:
            return
        tensors, state = read_checkpoint(path)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(f"the checkpoint {path} is damaged: {error}") from error
    _write(folder, round, tensors, state, {k: v for k, v in manifest.items() if k not in (*_OWN, *_SHARING)})


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit."""
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def keep_newest(folder: Path, keep: int, besides: int | None = None) -> None:
    """Remove all checkpoints but the newest ``keep`` and that of the round ``besides``.

    Raises RunError if one can't be removed.
    """
    with writing(folder):
        for old in rounds(folder)[:-keep]:
            if old != besides:
                remove(folder / name(old))


def latest(
    folder: Path, *, hashes: bool = True, why_not: Callable[[int], str] = lambda round: ""
) -> tuple[int, dict[str, Tensor], dict[str, object]] | None:
    """``(round, tensors, state)`` of the newest undamaged checkpoint, or None if there is no checkpoint.

    Damaged checkpoints, and those that refer to a damaged file of what clients keep, are skipped with a warning.
    Without ``hashes`` only the sizes of such files are compared.  ``why_not(round)`` says why a checkpoint can't be
    used, "" if it can; the first is used if there is no other.  Raises RunError if all are damaged.
    """
    available = rounds(folder)
    for round in reversed(available):
        path = folder / name(round)
        try:
            tensors, state = read_checkpoint(path)
            kept.check(folder.parent / KEPT, state, hashes=hashes)
            if round != available[0] and (reason := why_not(round)):
                raise ValueError(reason)
            return round, tensors, state
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            warnings.warn(f"the checkpoint {path} is damaged and is skipped: {error}", RuntimeWarning, stacklevel=2)
    if available:
        raise RunError(
            f"every checkpoint in {folder} is damaged (rounds {', '.join(map(str, available))});"
            " remove that folder to restart this run from its first round"
        )
    return None


def name(round: int) -> str:
    """The name of the folder of a round's checkpoint."""
    return f"round-{round:06d}"


def rounds(folder: Path) -> list[int]:
    """The rounds that have a checkpoint, ascending."""
    matches = (_NAME.fullmatch(entry.name) for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for match in matches if match)


def kept_files(folder: Path, round: int) -> frozenset[str]:
    """The files of what clients keep to which the checkpoint of ``round`` refers; none if it is damaged."""
    try:
        return frozenset(kept.files_of(manifest_of(folder / name(round))["state"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return frozenset()


def drop_after(folder: Path, round: int) -> None:
    """Remove the checkpoints of later rounds, which a continued run writes again."""
    with writing(folder):
        for later in rounds(folder):
            if later > round:
                remove(folder / name(later))


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, *, synced: bool = True
) -> dict[str, str]:
    """Write a safetensors file atomically.  Returns the aliases, ``{name: name of the stored tensor}``.

    Versions of a server's state share unchanged tensors.  Names that refer to the same view of a storage are aliases,
    and the view is stored once.  Raises RunError if the file can't be written.
    """
    from safetensors.torch import save_file

    stored: dict[str, Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    storages: set[int] = set()
    for address, tensor in tensors.items():
        tensor = tensor.detach()
        storage = tensor.untyped_storage().data_ptr()
        view = (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if storage and view in first:
            aliases[address] = first[view]
            continue
        first[view] = address
        # safetensors refuses tensors with overlapping storage; CPU tensors can be loaded on machines without a GPU
        tensor = tensor.cpu().contiguous()
        stored[address] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    with writing(path), replacing(path, durable=True, synced=synced) as partial:
        try:
            save_file(stored, partial, None if metadata is None else dict(metadata))
        except SafetensorError as error:  # safetensors reports a full disk by this error
            raise RunError(f"can't write {path}: {error}") from error
    return aliases


def manifest_of(path: Path) -> Manifest:
    """What ``state.json`` of a checkpoint's folder holds.

    Raises OSError or ValueError if it can't be read, AttributeError, KeyError or TypeError if it lacks a part.
    """
    try:
        manifest: Manifest = json.loads((path / "state.json").read_bytes())
    except RecursionError:
        raise ValueError("state.json is nested too deeply") from None
    for table, facts in manifest["records"].items():
        if [type(facts[name]) for name in ("lines", "bytes", "blake2b")] != [int, int, str]:
            raise ValueError(f"its digest of {table} isn't one")
    return manifest


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """``(tensors, state)`` of a checkpoint's folder.

    Raises OSError, ValueError, KeyError, TypeError, AttributeError or SafetensorError if it is damaged.
    """
    from safetensors.torch import load_file

    manifest = manifest_of(path)
    if text_digest(_json(manifest["state"]).encode()) != manifest["state_blake2b"]:
        raise ValueError("state.json doesn't match its checksum")
    if file_digest(path / "state.safetensors")["blake2b"] != manifest["tensors_blake2b"]:
        raise ValueError("state.safetensors doesn't match its checksum")
    tensors: dict[str, Tensor] = load_file(path / "state.safetensors")
    tensors.update({alias: tensors[other] for alias, other in manifest["aliases"].items()})
    if SHARED in manifest:
        weights = path.parent.parent / check_weights_name(manifest["weights"])
        if not weights.is_file() or file_digest(weights)["blake2b"] != manifest["weights_blake2b"]:
            raise ValueError(f"{weights.name}, which holds its tensors, is missing or has changed")
        final = load_file(weights)
        tensors.update({each: final[each] for each in manifest[SHARED]})
    return tensors, manifest["state"]


def check_weights_name(name: Any) -> str:
    """``name`` if it is the name of a run's final weights.  Raises ValueError."""
    if name != WEIGHTS:
        raise ValueError(f"it refers to the file {name!r:.80}")
    return WEIGHTS


def remove(path: Path) -> None:
    """Remove a checkpoint's folder.  Raises OSError."""
    # rename first, so that a kill can't leave a partial folder that looks like a checkpoint
    hidden = path.with_name(f".partial-removed-{path.name}")
    if hidden.exists():
        shutil.rmtree(hidden)
    os.rename(path, hidden)
    shutil.rmtree(hidden)


def copy_state(state: Mapping[str, object]) -> dict[str, object]:
    """A state as it is read back, in its own order.  Raises TypeError for one that JSON can't represent."""
    _check_keys(state)
    copy: dict[str, object] = json.loads(json.dumps(state))
    return copy


def _json(state: Any) -> str:
    _check_keys(state)
    return json.dumps(state, sort_keys=True)


def _check_keys(value: Any) -> None:
    """Raise TypeError for a key that isn't text."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):  # JSON would turn the key 3 into "3"
                raise TypeError(f"keys of a checkpoint's state must be strings, not {key!r}")
            if type(item) not in _SCALARS:
                _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            if type(item) not in _SCALARS:
                _check_keys(item)


_SCALARS = frozenset((int, float, str, bool, type(None)))
