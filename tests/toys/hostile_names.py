"""Runs whose records hold a stranger's text, and what commands print of them on a terminal and into a pipe.

Shares no code with ``edgefl.terminal``: what may be printed is said here once more.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgefl.console import main

TEXT = "=1+1\x1b]0;owned\x07\x1b[31m\x9b5m\u202eevil\u2066\u2028\u2029\t\r|`[*\\<b>$\\frac{\x7f\x00"
"""What a name may hold: a title of the window, colours, an order of text, line ends, marks of Markdown and of TeX."""

TABLES = ("clients.jsonl", "rounds.jsonl", "eligibility.jsonl", "scored.jsonl", "host.jsonl", "scratch.jsonl",
          "evaluation.json", "environment.json", "result.json", "models.json")  # fmt: skip

OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[12]?K|\x1b\[[0-9]*[AG]|\r")
"""What rich writes to a terminal: styles, the cursor's display, and steps of a display that is drawn anew."""


def harmful(text: str, *, terminal: bool) -> list[str]:
    """The characters of an output that steer a terminal; on one, what rich writes is no such character."""
    if terminal:
        text = OWN.sub("", text)
        if own := re.findall("\x1b\\[(?:31m|5m)", text):  # the styles of the hostile text would be taken for rich's
            return own
    return re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]", text)


def replaced(folder: Path, file: str, place: tuple[str, ...], text: str) -> None:
    """Replace all texts of a place in a file (``("server_works", "kind")``), or all names of fields there (``"*"``)."""
    path = folder / file
    if path.suffix == ".json":
        data = [json.loads(path.read_text(encoding="utf-8"))]
    else:
        data = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    written = [json.dumps(_with(record, place, text)) for record in data]
    path.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    listed = folder / "files.json"
    if listed.exists() and file in (files := json.loads(listed.read_text(encoding="utf-8")))["files"]:
        digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        files["files"][file] = {"bytes": path.stat().st_size, "blake2b": digest}
        listed.write_text(json.dumps(files), encoding="utf-8")


def _with(value: Any, place: tuple[str, ...], text: str) -> Any:
    if isinstance(value, list):
        return [_with(each, place, text) for each in value]
    if not place:
        return text if isinstance(value, str) else value
    if not isinstance(value, dict):
        return value
    if place == ("*",):
        return {f"{text}{name}": each for name, each in value.items()}
    return {name: _with(each, place[1:], text) if name == place[0] else each for name, each in value.items()}


def places(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each place of a text, and of a mapping, in the records of a run."""
    for file in TABLES:
        path = folder / file
        if path.exists():
            text = path.read_text(encoding="utf-8")
            found: dict[tuple[str, ...], None] = {}
            for record in [json.loads(text)] if path.suffix == ".json" else map(json.loads, text.splitlines()):
                _collect(record, (), found)
            yield from ((file, place) for place in found)


def _collect(value: Any, place: tuple[str, ...], found: dict[tuple[str, ...], None]) -> None:
    if isinstance(value, str):
        found[place] = None
    elif isinstance(value, list):
        for each in value:
            _collect(each, place, found)
    elif isinstance(value, dict):
        if place:
            found[*place, "*"] = None
        for name, each in value.items():
            _collect(each, (*place, name), found)


@contextmanager
def streams(*, terminal: bool) -> Iterator[Callable[[], str]]:
    """Both streams of this process as a terminal or as a pipe; the function says all that was written, at the end."""
    reading, writing = os.openpty() if terminal else os.pipe()
    pieces: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(reading, 65536):
                pieces.append(piece)
        except OSError:  # what a terminal says when its other side is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    before = sys.stdout, sys.stderr
    streams = [io.TextIOWrapper(io.FileIO(os.dup(writing), "w"), encoding="utf-8", write_through=True) for _ in "12"]
    os.close(writing)
    sys.stdout, sys.stderr = streams
    try:
        yield lambda: b"".join(pieces).decode("utf-8", "surrogateescape")
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.close()
        reader.join()
        os.close(reading)


def typed(*words: str, terminal: bool) -> tuple[int, str]:
    """Type a command: its exit code, and what it wrote to a terminal or into a pipe, stdout and stderr together."""
    with streams(terminal=terminal) as written, pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0), written()
