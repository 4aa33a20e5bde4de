"""Files of a run: each is replaced in one step and brought to the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgefl.errors import RunError
from edgefl.files import replacing


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal (read-only folder, full disk) into a RunError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise RunError(f"can't write {path}: {error.strerror or error}") from error


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` in one step.  Raises RunError."""
    with writing(path), replacing(path, durable=True) as partial:
        partial.write_bytes(content)
