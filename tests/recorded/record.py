"""Record the answers of small runs, profiles, sweeps and a fit, to compare them with those of a later edgefl.

    python tests/recorded/record.py FOLDER                     records and JSON answers, which the test compares
    python tests/recorded/record.py FOLDER --weights           also trained weights and the tensors of checkpoints
    python tests/recorded/record.py FOLDER --only NAME...      these scenarios and answers alone
    python tests/recorded/record.py --compare OLD NEW          compare bit by bit and print the largest difference
    python tests/recorded/record.py --against CHECKOUT [--python PYTHON] [--only NAME...]
                                                               record with this checkout and that one, and compare

``--only`` also knows ``KINDS``, small trainings in as many ways as there are, and shipped scenarios as ``shipped.py``
plays them; ``--against`` takes the kinds and the scenarios of this folder without it, weights included.  The other
checkout's Python has its entry points.

The recordings in this folder were renewed when seconds came by class of operator; of what no time decides, prices alone
differed from those made before the source was reorganised.  Two machines may differ in
the last digits of trained values, so weights are compared between two recordings from one machine only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import shipped

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE / "scenarios"
ANSWERS = ("profile", "profile-creamfl", "profile-depthfl", "sweep", "sweep-sensitivity", "fit")

TRAINED: dict[str, Any] = {
    "edgefl": 1,
    "name": "kind",
    "seed": 3,
    "data": {
        "source": "glyphs",
        "clients": {"image": 3, "text": 3, "image-text": 2},
        "samples": 24,
        "validation": 24,
        "test": 24,
    },
    "model": {
        "image": {"blocks": 2, "width": 16, "heads": 2},
        "text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 12},
    },
    "method": "fedavg",
    "schedule": {"name": "end-to-end", "rounds": 3},
    "training": {"batch": 8, "lr": 0.003},
    "fleet": {
        "devices": {"raspberry-pi-4-4gb": 0.5, "jetson-orin-nano-8gb": 0.5},
        "links": {"wifi-5": 0.5, "lte": 0.5},
    },
    "round": {"cohort": 0.6},
    "evaluation": {"every": 2},
    "executor": {"name": "inline", "device": "cpu"},
}
LINE = {"download": "4 Mbit/s", "upload": "2 Mbit/s"}
KINDS: dict[str, dict[str, Any]] = {
    "inline": {},
    "workers": {"executor": {"name": "processes", "workers": 2, "device": "cpu"}},
    "asynchronous": {"round": {"cohort": 4, "policy": "asynchronous"}},
    "buffered": {"round": {"cohort": 4, "policy": "buffered", "buffer": 2}},
    "semi-synchronous": {"round": {"cohort": 4, "policy": "semi-synchronous", "window": "0.1 s"}},
    "layer-wise": {"schedule": {"name": "layerwise", "stages": 2, "rounds": 4}, "method": "fedcola"},
    "scaffold": {"method": "scaffold", "training.optimizer": "sgd"},
    "kept": {"method": "fedper"},
    "spilled": {"aggregation": "median", "executor": {"name": "inline", "device": "cpu", "updates_memory": "1 KiB"}},
    "fifo": {"fleet.server_link": {**LINE, "sharing": "fifo"}},
    "fair": {"fleet.server_link": LINE},
    "relays": {"fleet.relays": {"count": 2, "failures": 0.3}},
    "failures": {"fleet.failures": {"upload": 0.2, "training": 0.1, "corrupted": 0.1},
                 "round": {"cohort": 0.6, "over_selection": 0.5, "deadline": "10 min"}},
    "markov": {"fleet.availability": {"markov": {"on": "0.3 s", "off": "0.1 s"}}},
    "battery": {"fleet.battery": {"capacity": "1..4 J", "initial": "30..100%"}},
    "codec": {"payload": {"down": "float16", "up": {"dtype": "int8", "top_k": 0.1}}},
    "oort": {"round": {"cohort": 0.4, "selection": "oort"}},
}  # fmt: skip
"""By kind of training: what it changes in ``TRAINED``."""


def documents(only: Sequence[str]) -> Mapping[str, Path | dict[str, Any]]:
    """Scenarios by name: those of this folder, or ``only`` some, among which kinds and shipped ones may be."""
    here: dict[str, Path | dict[str, Any]] = {path.stem: path for path in sorted(SCENARIOS.glob("*.yaml"))}
    if not only:
        return here
    kinds = {name: shipped.changed(TRAINED, changes) for name, changes in KINDS.items()}
    known = {**here, **kinds, **shipped.documents()}
    if unknown := set(only) - known.keys() - set(ANSWERS):
        raise SystemExit(f"--only: unknown {', '.join(sorted(unknown))}; known: {', '.join((*known, *ANSWERS))}")
    return {name: known[name] for name in only if name in known}


def record(folder: Path, weights: bool, only: Sequence[str] = ()) -> None:
    """Write every recording, or ``only`` some, into ``folder``.

    On one thread, since the order of sums depends on the number of threads.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    import edgefl

    folder.mkdir(parents=True, exist_ok=True)
    for scenario, document in documents(only).items():
        whole = folder / "work" / scenario
        edgefl.run(document, out=whole)
        for run in sorted(path.parent for path in whole.rglob("rounds.jsonl")):
            target = folder / scenario / run.relative_to(whole)
            target.mkdir(parents=True, exist_ok=True)
            for name in shipped.FILES:
                shutil.copyfile(run / name, target / name)
            if weights:
                last = max((run / "checkpoints").iterdir())  # older ones depend on the wall clock
                for path in sorted([*last.rglob("*.safetensors"), *run.glob("*.safetensors")]):
                    shutil.copyfile(path, target / path.relative_to(run).as_posix().replace("/", " "))
    shutil.rmtree(folder / "work", ignore_errors=True)
    trained, priced = SCENARIOS / "trained.yaml", SCENARIOS / "priced.yaml"
    answers: dict[str, Callable[[], object]] = {
        "profile": lambda: edgefl.profile(trained),
        "profile-creamfl": lambda: edgefl.profile(SCENARIOS / "exchanged.yaml"),
        "profile-depthfl": lambda: edgefl.profile(SCENARIOS / "exits.yaml"),
        "sweep": lambda: edgefl.sweep(
            trained,
            ["fleet.budgets.memory=1MiB,2MiB,3MiB", "schedule=end-to-end,layerwise,elastic"],
            overrides=["compare=null"],
        ),
        "sweep-sensitivity": lambda: edgefl.sweep(
            priced,
            ["schedule=end-to-end,layerwise"],
            overrides=["compare=null"],
            sensitivity="2x",
        ),
        "fit": lambda: edgefl.fit(
            trained, ["compare=null"], device="raspberry-pi-zero-2w", kind="image-text", memory="1 MiB", answers=3
        ),
    }
    for name, answer in answers.items():
        if not only or name in only:
            (folder / f"{name}.json").write_text(json.dumps(answer().to_data(), indent=1) + "\n", encoding="utf-8")


def files(folder: Path) -> Iterator[Path]:
    """Paths of the recorded files, relative to ``folder``."""
    yield from sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _content(path: Path) -> bytes:
    """What is compared of a file: its bytes; of an answer all but the order of its fields."""
    content = path.read_bytes()
    return json.dumps(json.loads(content), sort_keys=True).encode() if path.stem in ANSWERS else content


def _how_far(before: Path, after: Path) -> str:
    """By how much two files of records differ whose bytes do."""
    of_old, of_new = list[float](), list[float]()
    rests = [
        json.dumps(shipped.without_floats(shipped.values_of(path), floats))  # with the order of fields
        for path, floats in ((before, of_old), (after, of_new))
    ]
    if rests[0] != rests[1] or before.name.removesuffix(".json") in ANSWERS:
        return "the bytes differ"
    pairs = zip(of_old, of_new, strict=True)
    largest = max((abs(new - old) / max(abs(old), abs(new), 1e-300) for old, new in pairs), default=0.0)
    return f"only floats differ, by at most a relative {largest:.1e}"


def compare(old: Path, new: Path) -> list[str]:
    """Differences of two recordings from one machine: bytes of records, fields of answers, values of weights."""
    from safetensors.numpy import load_file

    old_files, new_files = set(files(old)), set(files(new))
    lines = [f"{name}: only in {old if name in old_files else new}" for name in sorted(old_files ^ new_files)]
    for name in sorted(old_files & new_files):
        if name.suffix != ".safetensors":
            before, after = (_content(folder / name) for folder in (old, new))
            if before != after:
                lines.append(f"{name}: {_how_far(old / name, new / name)}")
            continue
        before, after = load_file(old / name), load_file(new / name)
        if before.keys() != after.keys():
            lines.append(f"{name}: only one recording has the tensors {sorted(before.keys() ^ after.keys())}")
        for key in sorted(before.keys() & after.keys()):
            if before[key].tobytes() != after[key].tobytes():
                largest = abs(before[key].astype(float) - after[key]).max()
                lines.append(f"{name}: {key} differs by at most {largest:g}")
    return lines


def record_with(checkout: Path, python: str, folder: Path, only: Sequence[str]) -> None:
    """Record with the edgefl of a checkout, in a process of its own with a cache of its own."""
    command = [python, "-W", "ignore", __file__, str(folder / "recorded"), "--weights", "--only", *only]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "EDGEFL_CACHE": str(folder / "cache")}
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)


def main(arguments: list[str]) -> int:
    """Run the program; exit code 1 for differences, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="a folder for the recordings")
    parser.add_argument("--weights", action="store_true", help="also what depends on the machine")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="scenarios, kinds and answers")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="two folders of recordings")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout")
    parser.add_argument("--python", default=sys.executable, help="its Python (default: this one)")
    chosen = parser.parse_args(arguments)
    if sum(each is not None for each in (chosen.folder, chosen.compare, chosen.against)) != 1:
        parser.error("give a folder, --compare or --against")
    if chosen.folder is not None:
        record(chosen.folder, chosen.weights, chosen.only)
        return 0
    with tempfile.TemporaryDirectory() as made:
        old, new = chosen.compare or (Path(made) / "that" / "recorded", Path(made) / "this" / "recorded")
        if chosen.against is not None:
            only = chosen.only or [*KINDS, *documents(())]
            record_with(chosen.against.resolve(), chosen.python, old.parent, only)
            record_with(HERE.parents[1], sys.executable, new.parent, only)
        differences = compare(old, new)
        print("\n".join(differences) or "equal", f"compared: {len(list(files(new)))} files", sep="\n")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
