from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgefl import registry
from edgefl.data.collection import Collection, FolderRequest


@dataclass
class Reader:
    """Reads a registered set from a folder, and keeps what was told."""

    scratch: Path
    said: list[str] = field(default_factory=list)

    def __call__(self, name: str, folder: Path, size: int | None = None, **columns: Any) -> Collection:
        self.said.clear()
        chosen = registry.get("data set", name)
        scratch = self.scratch / str(len(list(self.scratch.iterdir())))
        scratch.mkdir()
        made: Collection = chosen.build(FolderRequest(size, chosen.find(folder), self.said.append, scratch, columns))
        return made


@pytest.fixture
def read(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("scratch"))
