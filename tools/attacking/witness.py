"""What must hold after an attack, found without edgefl: exit codes, what was printed, files, bytes, processes."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import psutil
from fuzzing.printed import unprintable

ROOT = Path(__file__).resolve().parents[2]
OF_THE_HOST = ("host.jsonl", "environment.json", "files.json", "writer.lock")
"""Files that name the time, the machine or a process, and the digests of all files."""
PROGRESS = re.compile(r"preparing |building the data set|drawing glyphs|holding out|reading \d+ run|.*: round \d|"
                      r"\S+ \(\d+ of \d+\)|edgefl: (warning: )?the executor|edgefl: records, weights")  # fmt: skip
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
    lines = [line for line in stderr.splitlines() if not PROGRESS.match(line)]
    if "Traceback (most recent call last)" in stderr:
        found.append(f"a traceback: {lines[-1][:200] if lines else ''}")
    elif len(lines) > MOST_LINES:
        found.append(f"{len(lines)} lines on stderr: {lines[0][:150]!r} ... {lines[-1][:150]!r}")
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """What is compared of each file below ``folder``: its bytes; nothing of those of the host.

    A checkpoint's manifest counts but for the digest of the host's table and the boot.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        mode, name = path.lstat().st_mode, path.relative_to(folder).as_posix()
        if stat.S_ISDIR(mode):
            found[f"{name}/"] = b""
        elif path.name in OF_THE_HOST:
            found[name] = b""
        elif path.name == "state.json":
            manifest = json.loads(path.read_bytes())
            manifest.pop("written_since_boot", None)
            manifest["records"].pop("host", None)
            found[name] = json.dumps(manifest, sort_keys=True).encode()
        else:
            found[name] = path.read_bytes() if stat.S_ISREG(mode) else str(path.readlink()).encode()
    return found


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
