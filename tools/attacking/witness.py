"""What must hold after an attack, found without edgefl: exit codes, what was printed, files, bytes, processes."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psutil
from fuzzing.printed import unprintable
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
OF_THE_HOST = ("host.jsonl", "environment.json", "files.json", "writer.lock", "optuna.journal", "bench.html")
"""Files that name the time, the machine or a process, and the digests of all files."""
PROGRESS = re.compile(r"preparing |\d+ runs$|.* \(\d+ of \d+\)|building the data set|drawing glyphs|"
                      r"holding out|reading \d+ run|.*: round \d|edgefl: (warning: )?the executor|"
                      r"edgefl: records, weights")  # fmt: skip
MOST_LINES = 6
"""Lines on stderr beside those of progress."""


@cache
def documented() -> frozenset[int]:
    """The exit codes of the page on errors."""
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    rows = page.partition("## Exit codes")[2].partition("| Command |")[0]
    return frozenset(int(code) for code in re.findall(r"^\| (\d+) \|", rows, re.MULTILINE))


def faults_of_output(stdout: str, stderr: str) -> list[str]:
    """What is wrong with the text of a command."""
    found = [
        f"{name} has {what}" for name, text in (("stdout", stdout), ("stderr", stderr)) if (what := unprintable(text))
    ]
    lines, progress = [], False
    for line in stderr.splitlines():
        progress = bool(PROGRESS.match(line)) or (progress and line.startswith("  "))  # a round's scores stand below it
        if not progress:
            lines.append(line)
    if "Traceback (most recent call last)" in stderr:
        found.append(f"a traceback: {lines[-1][:200] if lines else ''}")
    elif len(lines) > MOST_LINES:
        found.append(f"{len(lines)} lines on stderr: {lines[0][:150]!r} ... {lines[-1][:150]!r}")
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """What is compared of each file below ``folder``: its bytes; nothing of those of the host.

    A checkpoint counts by its state and tensors, but for the digest of the host's table.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        mode, name = path.lstat().st_mode, path.relative_to(folder).as_posix()
        if stat.S_ISDIR(mode):
            found[f"{name}/"] = b""
        elif path.name in OF_THE_HOST:
            found[name] = b""
        elif path.name == "state.json" and (path.parent.parent.parent / "weights.safetensors").exists():
            found[name], found[f"{name[:-5]}.safetensors"] = _checkpoint(path)
        elif path.name in ("tune.json", "bench.json"):
            found[name] = _answer(json.loads(path.read_bytes()))
        elif path.name != "state.safetensors" or name not in found:
            found[name] = path.read_bytes() if stat.S_ISREG(mode) else str(path.readlink()).encode()
    return found


def _answer(data: Any) -> bytes:
    """An answer without its folder, the seconds that it took, and those of its trials."""
    for each in (data, *data.get("trials", ())):
        each.pop("seconds", None)
        each.pop("folder", None)
    return json.dumps(data).encode()


def _checkpoint(manifest_file: Path) -> tuple[bytes, bytes]:
    """State and tensors of a checkpoint, wherever they lie: a finished run has some in its weights only."""
    manifest = json.loads(manifest_file.read_bytes())
    manifest["records"].pop("host", None)
    weights = load_file(manifest_file.parent.parent.parent / "weights.safetensors")
    tensors = load_file(manifest_file.with_suffix(".safetensors"))
    tensors |= {name: weights[name] for name in manifest.get("in_weights", ())}
    state = {name: manifest[name] for name in ("round", "state", "inputs", "records", "made_of")}
    digest = blake2b(b"".join(name.encode() + tensors[name].tobytes() for name in sorted(tensors)))
    return json.dumps(state, sort_keys=True).encode(), digest.digest()


def differences(expected: Mapping[str, bytes], folder: Path, but: tuple[str, ...] = ()) -> list[str]:
    """How a folder differs from an uninterrupted one; ``but`` are names of files that may differ."""
    try:
        found = contents(folder)
    except (OSError, ValueError, KeyError) as error:
        return [f"the folder can't be read: {error!r}"]
    lines = [
        f"{name} is {'missing' if name in expected else 'left behind'}"
        for name in sorted(expected.keys() ^ found.keys())
    ]
    return lines + [
        f"{name} differs"
        for name in sorted(expected.keys() & found.keys())
        if expected[name] != found[name] and Path(name).name not in but
    ]


def processes(session: int, mark: str) -> list[psutil.Process]:
    """Processes of a command's session, or with ``mark`` in their environment, that haven't ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(") ")[2].split()
            environment = (path / "environ").read_bytes()
        except (OSError, ValueError):
            continue
        if fields[0] not in "ZX" and (int(fields[3]) == session or mark.encode() in environment):
            found.append(psutil.Process(int(path.name)))
    return found
