"""Data that change under one path are seen in one process, and code that changes without a new revision is told."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import miniatures
import pytest

import edgefl
from edgefl import registry
from edgefl.data.fingerprints import fingerprint
from edgefl.data.look import one_look
from edgefl.errors import DataError
from edgefl.scenario import load
from edgefl.setup.compose import federation_of


@pytest.fixture
def scenario(tiny: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A scenario of pictures in a folder of its own."""
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "cache"))
    miniatures.cifar100(tmp_path / "cifar100", 60, 20)
    tower = {"blocks": 2, "width": 16, "heads": 2, "patch": 8}
    return tiny(
        data={"source": "cifar100", "folders": {"cifar100": str(tmp_path / "cifar100")}, "clients": {"image": 2},
              "partition": "iid", "size": 16, "test": 10, "validation": 10},
        model={"image": tower},
        training="none",
    )  # fmt: skip


def test_changed_files_are_seen_and_unchanged_ones_are_opened_once(scenario: dict[str, Any], tmp_path: Path) -> None:
    loaded = load(scenario)
    first = federation_of(loaded, lambda _: None)
    assert federation_of(loaded, lambda _: None) is first
    miniatures.cifar100(tmp_path / "cifar100", 90, 20)
    second = federation_of(loaded, lambda _: None)
    assert second.client_samples.sum() > first.client_samples.sum()
    for path in (tmp_path / "cifar100").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(DataError):
        federation_of(loaded, lambda _: None)


def test_a_second_command_sees_them(scenario: dict[str, Any], tmp_path: Path) -> None:
    before = edgefl.run(scenario, out=tmp_path / "one").records("rounds")[0]["samples"]
    miniatures.cifar100(tmp_path / "cifar100", 90, 20)
    after = edgefl.run(scenario, out=tmp_path / "two").records("rounds")[0]["samples"]
    assert after["image"] > before["image"]


def test_every_file_counts_and_not_only_the_newest(tmp_path: Path) -> None:
    """Number, bytes and newest time stay as they are while an older file changes its name, its size or its time."""
    for number, name in enumerate(("a", "b", "inner/c")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"xx")
        os.utime(path, ns=(0, (number + 1) * 10**9))
    known = [fingerprint(tmp_path)]
    assert fingerprint(tmp_path) == known[0]
    (tmp_path / "a").rename(tmp_path / "d")
    known.append(fingerprint(tmp_path))
    os.utime(tmp_path / "d", ns=(0, 5 * 10**8))
    known.append(fingerprint(tmp_path))
    (tmp_path / "d").write_bytes(b"x")
    (tmp_path / "b").write_bytes(b"xxx")
    os.utime(tmp_path / "d", ns=(0, 5 * 10**8))
    os.utime(tmp_path / "b", ns=(0, 2 * 10**9))
    known.append(fingerprint(tmp_path))
    assert len({digest for _, digest in known}) == 4


def test_a_command_looks_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with one_look():
        before = fingerprint(tmp_path)
        (tmp_path / "a").write_bytes(b"xx")
        with one_look():
            assert fingerprint(tmp_path) == before
    assert fingerprint(tmp_path) != before


SETS = '''
"""Two kinds of stripes, each in a noise of its own."""
import numpy as np
from edgefl.data import Collection, DataSet
from striped.shades import SHADE


def build(size, on_message):
    n, size = 120, size or 16
    label = np.arange(n) % 2
    images = np.random.default_rng(0).integers(0, 60, (n, 1, size, size)).astype(np.uint8)
    images[label == 0, :, ::2] += SHADE
    images[label == 1, :, :, ::2] += SHADE
    return Collection(classes=("rows", "columns"), label=label, group=np.arange(n), images=images)


STRIPED = DataSet(build, revision=REVISION)
'''


def test_code_that_changes_without_a_new_revision_is_told(
    install: Callable[[Path], None], scenario: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be taken for that of a file of the same second
    package = tmp_path / "sets" / "striped"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")

    def write(shade: int, revision: int, other: str = "") -> None:
        (package / "shades.py").write_text(f"SHADE = {shade}\n")
        (package / "unused.py").write_text(other)
        (package / "sets.py").write_text(SETS.replace("REVISION", str(revision)))
        for name in [name for name in sys.modules if name.partition(".")[0] == "striped"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        registry.forget()

    info = tmp_path / "sets" / "striped-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: striped\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[edgefl.datasets]\nstriped = striped.sets:STRIPED\n")
    write(100, 1)
    install(tmp_path / "sets")
    data = {**scenario["data"], "source": "striped", "folders": {}}

    def opened(seed: int) -> Any:
        """Another seed, so that the data are opened again."""
        return federation_of(load({**scenario, "data": data, "seed": seed}), lambda _: None)

    first = opened(1)
    write(100, 1, other="X = 1\n")  # a module that doesn't build it
    opened(2)
    write(1000, 1)
    with pytest.warns(UserWarning, match="the data set 'striped' of the plug-in striped 1.0 .*still 1: the data built"):
        assert opened(3).part_keys != first.part_keys
    write(120, 2)
    opened(4)
    write(120, 2, other="X = 2\n")
    opened(5)
