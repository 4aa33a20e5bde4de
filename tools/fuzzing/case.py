"""A case: the files of one hostile input, and the commands that read them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("scenarios", "suites", "profiles", "traces", "tables", "runs", "modules")
"""What is made hostile: one kind of input, each with a target of its own."""

PIPE, LINK, FOLDER = "pipe", "link", "folder"


@dataclass(frozen=True)
class Odd:
    """An entry of a case's folder that isn't a plain file: a named pipe, a link to ``target``, an empty folder."""

    what: str
    target: str = ""

    def make(self, path: Path) -> None:
        """Create it at ``path``."""
        if self.what == PIPE:
            os.mkfifo(path)
        elif self.what == LINK:
            path.symlink_to(self.target)
        else:
            path.mkdir(exist_ok=True)


Content = bytes | Odd


@dataclass(frozen=True)
class Case:
    """Files by their path in the case's folder.

    ``hostile`` names the files that were changed.
    """

    kind: str
    files: Mapping[str, Content]
    hostile: tuple[str, ...] = field(default=())

    def write(self, folder: Path) -> None:
        """Write the files to a new or empty folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Odd):
                content.make(path)
            else:
                path.write_bytes(content)


def commands(case: Case) -> list[str]:
    """The commands that a user would type in the case's folder to see what happened."""
    if case.kind == "profiles":
        return ["edgefl devices show ./mine.yaml", "edgefl validate scenario.yaml"]
    if case.kind == "suites":
        return ["edgefl bench suite.yaml"]
    if case.kind == "modules":
        return [f"edgefl {word} scenario.yaml --plugin tower.py" for word in ("validate", "run")]
    if case.kind == "runs":
        return ["edgefl run --resume run --verify"]
    if "scenario.json" in case.files:
        return ["python -c 'import edgefl, json; edgefl.validate(json.load(open(\"scenario.json\")))'"]
    overrides = case.files.get("overrides.txt", b"")
    assert isinstance(overrides, bytes)
    sets = "".join(f" --set {line!r}" for line in overrides.decode(errors="replace").splitlines())
    return [f"edgefl validate scenario.yaml{sets}"]
