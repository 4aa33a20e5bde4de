"""Record the answers of small runs, profiles, sweeps and a fit, to compare them with those of a later edgefl.

    python tests/recorded/record.py FOLDER                     records and JSON answers, which the test compares
    python tests/recorded/record.py FOLDER --weights           also trained weights, checkpoints and resolved scenarios
    python tests/recorded/record.py FOLDER --only NAME...      these scenarios and answers alone
    python tests/recorded/record.py --compare OLD NEW          compare bit by bit and print the largest difference

The recordings in this folder were renewed when seconds came by class of operator; of what no time decides, prices alone
differed from those made before the source was reorganised.  Two machines may differ in
the last digits of trained values, so weights are compared between two recordings from one machine only.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE / "scenarios"
ANSWERS = ("profile", "profile-creamfl", "profile-depthfl", "sweep", "sweep-sensitivity", "fit")
TABLES = ("rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "result.json", "models.json")


def record(folder: Path, weights: bool, only: Sequence[str] = ()) -> None:
    """Write every recording, or ``only`` some, into ``folder``.

    On one thread, since the order of sums depends on the number of threads.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    import edgefl

    folder.mkdir(parents=True, exist_ok=True)
    for scenario in sorted(path for path in SCENARIOS.glob("*.yaml") if not only or path.stem in only):
        whole = folder / "work" / scenario.stem
        edgefl.run(scenario, output=whole)
        for run in sorted(path.parent for path in whole.rglob("rounds.jsonl")):
            target = folder / scenario.stem / run.relative_to(whole)
            target.mkdir(parents=True, exist_ok=True)
            for name in TABLES:
                shutil.copyfile(run / name, target / name)
            if weights:
                last = max((run / "checkpoints").iterdir())  # older ones depend on the wall clock
                shutil.copytree(last, target / "checkpoint")
                shutil.copyfile(run / "scenario.yaml", target / "scenario.yaml")
                for path in sorted(run.glob("*.safetensors")):
                    shutil.copyfile(path, target / path.name)
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
            sensitivity_to="2x",
        ),
        "fit": lambda: edgefl.fit(
            trained, ["compare=null"], device="raspberry-pi-zero-2w", kind="image-text", memory="1 MiB", first=3
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


def compare(old: Path, new: Path) -> list[str]:
    """Differences of two recordings from one machine: bytes of records, fields of answers, values of weights."""
    from safetensors.numpy import load_file

    old_files, new_files = set(files(old)), set(files(new))
    lines = [f"{name}: only in {old if name in old_files else new}" for name in sorted(old_files ^ new_files)]
    for name in sorted(old_files & new_files):
        if name.suffix != ".safetensors":
            before, after = (_content(folder / name) for folder in (old, new))
            if before != after:
                lines.append(f"{name}: the bytes differ")
            continue
        before, after = load_file(old / name), load_file(new / name)
        if before.keys() != after.keys():
            lines.append(f"{name}: only one recording has the tensors {sorted(before.keys() ^ after.keys())}")
        for key in sorted(before.keys() & after.keys()):
            if before[key].tobytes() != after[key].tobytes():
                largest = abs(before[key].astype(float) - after[key]).max()
                lines.append(f"{name}: {key} differs by at most {largest:g}")
    return lines


def main(arguments: list[str]) -> int:
    """Run the program; exit code 1 for differences, 2 for wrong arguments."""
    if arguments[:1] == ["--compare"] and len(arguments) == 3:
        differences = compare(Path(arguments[1]), Path(arguments[2]))
        print("\n".join(differences) or f"equal: {len(list(files(Path(arguments[2]))))} files")
        return bool(differences)
    only = arguments[2:] if arguments[1:2] == ["--only"] else []
    if not arguments or arguments[0].startswith("-") or (arguments[1:] not in ([], ["--weights"]) and not only):
        print(__doc__)
        return 2
    record(Path(arguments[0]), arguments[1:] == ["--weights"], only)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
