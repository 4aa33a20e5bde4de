"""The cache on disk: it keeps its bound, and processes that write, read and remove at once get what they wrote."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgefl import memo
from edgefl.memo import BOUNDS, FORGOTTEN_SECONDS, LOOKED, bound_folder, keep, keep_bound, recall, remember


def test_what_was_used_longest_ago_gives_way(tmp_path: Path) -> None:
    names, now = "abcd", time.time()
    for name in names:
        keep(tmp_path / name, bytes(1000))
    for place, name in enumerate(names):
        os.utime(tmp_path / name, (now - 100 * place, now - 1000))
    entry = tmp_path / "entry"
    entry.mkdir()
    (entry / "array.npy").write_bytes(bytes(5000))
    os.utime(entry / "array.npy", (now - 500, now - 500))
    for name, age in ((".partial-of-a-killed-one", 2 * FORGOTTEN_SECONDS), (".partial-of-another", 60.0)):
        (tmp_path / name).write_bytes(bytes(9000))
        os.utime(tmp_path / name, (now - age, now - age))
    bound_folder(tmp_path, 2500, 60.0)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", ".partial-of-another"}
    bound_folder(tmp_path, 0, 60.0)
    assert (tmp_path / "a").exists() and not (tmp_path / "b").exists()  # used just now


def test_a_folder_is_looked_through_once_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "costs"
    monkeypatch.setitem(BOUNDS, "costs", 0)
    keep(folder / "old", b"old")
    mark, hours = tmp_path / f"{LOOKED}costs", time.time() - 3 * 3600
    assert mark.exists()
    os.utime(folder / "old", (hours, hours))
    keep_bound(folder)
    assert (folder / "old").exists()
    monkeypatch.setattr(memo, "_looked", {})  # another process
    keep_bound(folder)
    assert (folder / "old").exists()
    os.utime(mark, (hours, hours))
    keep_bound(folder)
    assert (folder / "old").exists()
    monkeypatch.setattr(memo, "_looked", {})
    keep_bound(folder)
    assert not (folder / "old").exists()


AT_ONCE = """
import sys
from pathlib import Path
import numpy as np
from edgefl.data.stored_arrays import Built, entry
from edgefl.memo import bound_folder, recall, remember

cache, who = Path(sys.argv[1]), int(sys.argv[2])
for turn in range(150):
    number = (turn * (3 + who)) % 7
    remember(cache / "costs", f"price-{number}", [number] * 200)
    for other in range(7):
        found = recall(cache / "costs", f"price-{other}", list, "prices")
        assert found in (None, [other] * 200), found
    if turn % 3 == 0:
        built = Built({"values": np.full(500, number)}, {"classes": [str(number)]}, {"text": str(number)})
        made = entry(cache, f"set-{number}", lambda: built)
        assert (made.arrays["values"] == number).all() and made.text("text") == str(number)
    for name in ("costs", "data"):
        bound_folder(cache / name, 3000, 0.2)  # what was just built stays until it is opened
"""


def test_two_processes_write_read_and_remove_at_once(tmp_path: Path) -> None:
    """Each finds what was written or nothing, and neither warns."""
    both = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", AT_ONCE, str(tmp_path), str(who)], stderr=subprocess.PIPE
        )
        for who in range(2)
    ]
    assert [process.communicate(timeout=300)[1] for process in both] == [b"", b""]
    assert [process.returncode for process in both] == [0, 0]
    for name in ("costs", "data"):
        bound_folder(tmp_path / name, 3000, 0.0)
        left = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in left) <= 3000
        assert not [path for path in left if path.name.startswith(".partial-")]
    assert recall(tmp_path / "costs", "price-9", list, "prices") is None
    remember(tmp_path / "costs", "price-9", [9])
    assert recall(tmp_path / "costs", "price-9", list, "prices") == [9]
