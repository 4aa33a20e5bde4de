"""Which modules commands import, each typed in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TYPED = """
import contextlib, importlib, io, json, os, sys
from edgefl.console import main

for name in json.loads(sys.argv[2]):
    importlib.import_module(name)
for words, libraries in json.loads(sys.argv[1]):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    code = 0
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(words.split())
    except SystemExit as end:
        code = end.code or 0
    print(json.dumps([words, code, [each for each in libraries if each in sys.modules]]), flush=True)
    os._exit(0)
"""


def imported(
    commands: Mapping[str, Set[str]], folder: Path, before: Sequence[str] = ()
) -> dict[str, tuple[int, list[str]]]:
    """The exit code of each command and which of its libraries it has imported.

    Each is typed in a process of its own, a fork of one that has imported ``edgefl.console`` and what all of them may
    import (``before``).
    """
    asked = json.dumps([(words, sorted(libraries)) for words, libraries in commands.items()])
    done = subprocess.run(
        [sys.executable, "-c", TYPED, asked, json.dumps(before)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=folder, check=True,
    )  # fmt: skip
    return {words: (code, found) for words, code, found in map(json.loads, done.stdout.splitlines())}
