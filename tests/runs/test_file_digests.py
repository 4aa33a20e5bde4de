"""Digests of files that a stranger wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgefl.runs.digests import file_differences, file_digests


def test_a_file_differs_if_its_bytes_do(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    written = file_digests(tmp_path, ["a", "absent"])
    assert file_differences(tmp_path, written) == []
    (tmp_path / "a").write_bytes(b"two")
    assert file_differences(tmp_path, written) == ["a has changed since the run finished"]


@pytest.mark.parametrize("digest", ["cbd404", 5, None, [1], {}, {"bytes": "3"}])
def test_a_digest_of_another_type_is_a_difference(tmp_path: Path, digest: Any) -> None:
    (tmp_path / "a").write_bytes(b"one")
    assert file_differences(tmp_path, {"a": digest}) == ["a has changed since the run finished"]
