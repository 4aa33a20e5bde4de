"""Every shipped scenario as it is played here, in seconds, and digests of its records.

    python tests/recorded/shipped.py FILE [NAME...]      write the digests of the edgefl that is imported

Nothing is trained, so that records don't depend on how a processor adds: eligibility, choice of clients, clock, bytes,
joules and outcomes are those of the scenario.  Only what a real training gives is left out: ``record.py --against``
compares that, on one machine.  Those in ``shipped.json`` were written by the version before clients became processes
of SimPy.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from math import isclose
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE.parents[1] / "scenarios"
DIGESTS = HERE / "shipped.json"
FILES = ("rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "result.json", "models.json")
OF_KERNELS = (
    "memory", "memory_bytes", "peak_memory_bytes", "live_memory_bytes", "process_memory_bytes", "margins", "costs",
    "reason",
)  # fmt: skip
"""Fields that kernels of a processor decide by the scratch that they take; a reason names the peak."""

LEFT_OUT = {"suites/bandwidth": "has no scenario of its own: it is memory's under other budgets"}
"""Shipped files that aren't played, and why."""
COMPARED = ("quickstart", "spoken-digits", "tour")
"""Scenarios of which every combination is played; of the others the first that each names."""
ROUNDS = {"million": 2, "finetune/gpt2": 5, "finetune/smollm2-135m": 5, "finetune/vit-s-bert": 5}
"""Rounds of those that would write many records."""
SHAPES = {
    "image": {"channels": 3, "size": 224, "classes": 100},
    "text": {"vocabulary": 30522, "classes": 100},
    "audio": {"bins": 128, "frames": 1024, "classes": 100},
    "motion": {"readings": 128, "channels": 9, "classes": 6},
}
FETCHED = (
    "edge-data/femnist", "edge-data/shakespeare", "edge-data/speech-commands", "edge-data/uci-har",
    "papers/creamfl-coco", "papers/fedcola-flickr30k", "papers/lw-fedmml-advance-train", "papers/lw-fedmml-coco-train",
    "papers/mcfl-cifar100-agnews", "papers/mcfl-organamnist-mtsamples", "papers/pmcmfl-vqa",
)  # fmt: skip
"""Scenarios whose data sets have to be fetched by hand: samples of their shapes are declared instead."""


def documents() -> dict[str, dict[str, Any]]:
    """The scenarios that are played, by name; each variant of a suite under each condition is one."""
    found = {}
    for path in sorted(SCENARIOS.rglob("*.yaml")):
        name = path.relative_to(SCENARIOS).with_suffix("").as_posix()
        if name not in LEFT_OUT:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            found |= dict(_of_suite(name, document)) if "scenario" in document else {name: _played(name, document)}
    return found


def _played(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """A scenario that trains nothing, in this process."""
    _put(document, "training.mode", "none")
    document["executor"] = {"name": "inline", "device": "cpu"}
    document.pop("stop", None)  # it follows a metric
    if name not in COMPARED:
        document.pop("compare", None)
    if name in ROUNDS:
        _put(document, "schedule.rounds", ROUNDS[name])
    if name in FETCHED:
        data = document["data"]
        kept = {key: data[key] for key in ("clients", "tasks", "public") if key in data}
        if kept.get("public") == "all":
            kept["public"] = 50_000  # as many as CreamFL's paper has
        shapes = {modality: shape for modality, shape in SHAPES.items() if modality in " ".join(kept["clients"])}
        document["data"] = {"source": "declared", "samples": 64, "validation": 64, "test": 64, "shapes": shapes, **kept}
        for tower in document["model"].values():
            if isinstance(tower, dict):
                tower.pop("weights", None)
    return document


def _of_suite(name: str, suite: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    conditions = suite.get("conditions", {"": {}})
    for (variant, changes), (condition, more) in product(suite["variants"].items(), conditions.items()):
        full = "/".join(filter(None, (name, condition, variant)))
        document = {"edgefl": 1, "name": "suite", **changed(suite["scenario"], {**changes, **more})}
        yield full, _played(full, document)


def changed(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a scenario with these values at these paths."""
    copy: dict[str, Any] = deepcopy(dict(document))
    for path, value in changes.items():
        _put(copy, path, value)
    return copy


def _put(document: dict[str, Any], path: str, value: object) -> None:
    *sections, last = path.split(".")
    for section in sections:
        document = document.setdefault(section, {})
    document[last] = value


def play(document: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Digests of the files of a scenario's runs, by path in ``folder``, which is new."""
    import edgefl

    edgefl.run(dict(document), out=folder)
    shared = _has_fair_shares(document)
    paths = [run.parent / name for run in sorted(folder.rglob("rounds.jsonl")) for name in FILES]
    return {path.relative_to(folder).as_posix(): digests(path, shared) for path in paths}


def _has_fair_shares(document: Mapping[str, Any]) -> bool:
    line = document.get("fleet", {}).get("server_link")
    return bool(line) and line.get("sharing", "fair") == "fair"


def digests(path: Path, shared: bool) -> dict[str, Any]:
    """What is kept of a file: of its bytes, and of its values as far as all processors agree on them.

    Floats are rounded to six digits, because ``exp`` differs by the last of sixteen.  With ``shared`` the digest of the
    bytes gives way to the floats themselves and a digest of the rest: the bits of a line's shares depend on the order
    in which they are summed.
    """
    content = path.read_text(encoding="utf-8")
    values = values_of(path)
    floats: list[float] = []
    rest = _digest(json.dumps(without_floats(values, floats)))
    kept = {"rounded": _digest(json.dumps(_rounded(values)))}
    return {**kept, "floats": floats, "rest": rest} if shared else {**kept, "bytes": _digest(content)}


def values_of(path: Path) -> Any:
    """What a file of records has: a list of them, or one."""
    content = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in content.splitlines()] if path.suffix == ".jsonl" else json.loads(content)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def without_floats(value: Any, floats: list[float]) -> Any:
    """The value with None for its floats, which are added to ``floats``."""
    if isinstance(value, dict):
        return {key: without_floats(each, floats) for key, each in value.items()}
    if isinstance(value, list):
        return [without_floats(each, floats) for each in value]
    if isinstance(value, float):
        floats.append(value)
        return None
    return value


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(value[key]) for key in sorted(value) if key not in OF_KERNELS}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return f"{value:.6g}" if isinstance(value, float) else value


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *, same_kernels: bool) -> list[str]:
    """Files whose digests differ; on a processor with other kernels than those of the recording, of the values alone.

    The times of a fairly shared line agree to a relative 1e-9.
    """
    lines = [f"{name}: only {'recorded' if name in before else 'here'}" for name in sorted(before.keys() ^ now.keys())]
    for name in sorted(before.keys() & now.keys()):
        was, is_ = before[name], now[name]
        if not same_kernels:
            lines += [f"{name}: its values differ"] * (was["rounded"] != is_["rounded"])
        elif "floats" in was:
            pairs = list(zip(was["floats"], is_["floats"], strict=False))
            far = [pair for pair in pairs if not isclose(*pair, rel_tol=1e-9, abs_tol=1e-12)]
            lines += [f"{name}: a float was {old!r} and is {new!r}" for old, new in far[:1]]
            lines += [f"{name}: its rest differs"] * (was["rest"] != is_["rest"])
        else:
            lines += [f"{name}: its bytes differ"] * (was["bytes"] != is_["bytes"])
    return lines


def main(file: Path, names: Sequence[str]) -> None:
    """Write the digests of all scenarios, or of ``names`` alone, into a file."""
    os.environ["OMP_NUM_THREADS"] = "1"
    found = {}
    for name, document in documents().items():
        if not names or name in names:
            with tempfile.TemporaryDirectory() as made:
                found[name] = play(document, Path(made) / "run")
    lines = (f"{json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in sorted(found))
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
