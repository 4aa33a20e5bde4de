"""Tables at several widths: nothing is wider than the screen, no name is broken, captions are wrapped once.

    python tests/drawing/test_widths.py

writes the snapshots again.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from edgefl import registry
from edgefl.commands.devices.table import print_devices
from edgefl.commands.fit.table import print_fit
from edgefl.commands.parts.schema_parts import kind_names, only, parts_of
from edgefl.commands.parts.table import print_parts
from edgefl.commands.profile.rounds_table import print_profile
from edgefl.commands.sweep.answer import CellRow, Sweep
from edgefl.commands.sweep.table import print_sweep
from edgefl.devices.browsing import browse, describe
from edgefl.drawing.text_tables import new_table, print_table, screen
from tests.toys.answers import recorded_fit, recorded_profile, recorded_sweep

HERE = Path(__file__).parent
SNAPSHOTS = HERE / "snapshots"
WIDTHS = (80, 120)
Show = Callable[[Any, Console], None]


def text(show: Show, result: Any, width: int) -> str:
    file = io.StringIO()
    show(result, Console(file=file, width=width, no_color=True, color_system=None, markup=False, highlight=False))
    return file.getvalue()


def print_full_sweep(result: Sweep, console: Console) -> None:
    print_sweep(result, console, full=True)


def refused() -> Sweep:
    """The recorded sweep with two cells that can't be run."""
    result = recorded_sweep()
    first, *others, last = result.rows
    reason = "schedule.stages: 9 stages are more than the 2 blocks of the image tower"
    cell = CellRow(label=last.label, sets={}, method=last.method, schedule=last.schedule, refused=reason)
    long = replace(cell, label="schedule=heterofl,devices=raspberry-pi-3b-plus,memory=16MiB")
    return replace(result, rows=[first, *others, cell, long])


TABLES: dict[str, tuple[Show, Callable[[], Any]]] = {
    "sweep": (print_sweep, refused),
    "sweep-full": (print_full_sweep, refused),
    "sweep-sensitivity": (print_full_sweep, lambda: recorded_sweep("sweep-sensitivity")),
    "fit": (print_fit, recorded_fit),
}
"""Tables with a snapshot, each from a recorded result."""

LIVE: dict[str, tuple[Show, Callable[[], Any]]] = {
    **TABLES,
    "profile": (print_profile, recorded_profile),
    "devices": (print_devices, browse),
    "device": (print_devices, lambda: describe("raspberry-pi-4-4gb")),
    "link": (print_devices, lambda: describe("lte")),
    "method": (print_parts, lambda: only(parts_of(["method"]), "method", "fedcola")),
    "parts": (print_parts, lambda: parts_of(kind_names())),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_tables_look_like_their_snapshots(name: str, width: int) -> None:
    show, result = TABLES[name]
    assert text(show, result(), width) == (SNAPSHOTS / f"{name}-{width}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("name", LIVE)
def test_nothing_is_wider_than_the_screen(name: str, width: int) -> None:
    show, result = LIVE[name]
    # a source's quotation and address are one line each, to be copied
    lines = [line for line in text(show, result(), width).splitlines() if "http" not in line]
    if name not in ("device", "link"):
        assert max(map(len, lines)) <= width
    if name in TABLES:
        assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_are_whole(width: int) -> None:
    devices = browse()
    words = set(text(print_devices, devices, width).split())
    assert {entry["name"] for section in ("devices", "links", "fleets") for entry in devices[section]} <= words
    for part in parts_of(["method"]).sections["method"]:
        words = set(text(print_parts, only(parts_of(["method"]), "method", part.name), width).split())
        assert {option.name for option in part.options or ()} <= words
    sweep = text(print_sweep, refused(), width)
    for row in refused().rows:
        assert all(word in sweep for piece in row.label.split(",") for word in piece.split("="))


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_captions_are_wrapped_once(width: int) -> None:
    lines = text(print_full_sweep, recorded_sweep("sweep-sensitivity"), width).splitlines()
    starts = ("Refused by: ", "Empty: ", "Each number ")
    found = 0
    for number, line in enumerate(lines):
        if not line.startswith(starts):
            continue
        found += 1
        while number + 1 < len(lines) and lines[number + 1] and not lines[number + 1].startswith("tau: "):
            following = lines[number + 1].split()[0]
            space = 2 if lines[number].endswith(".") else 1
            assert len(lines[number]) + space + len(following) > width, f"{lines[number]!r} has room for {following!r}"
            number += 1
    assert found == len(starts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text("abcdefgh-=", min_size=1, max_size=30),
            st.text("abc, ", max_size=60),
            st.integers(0, 10**9),
            st.text("abcdef ghi", max_size=120),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(60, 130),
)
def test_any_table_fits_and_breaks_no_word(rows: list[tuple[str, str, int, str]], width: int) -> None:
    table = new_table("name", "some words", "number", "more\nwords", left=(0, 1, 3))
    for name, some, number, more in rows:
        table.add_row(name, some, f"{number:,} B", more)
    file = io.StringIO()
    print_table(Console(file=file, width=width, color_system=None), table)
    lines = file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    printed = file.getvalue().split()
    longest = int(width * 0.45)
    for name, some, number, more in rows:
        assert all(word in printed for word in (*some.split(), *more.split()) if len(word) <= longest)
        assert len(name) > longest or name in printed
        assert f"{number:,} B" in file.getvalue()


@pytest.mark.parametrize(
    ("columns", "width"), [("80", 80), ("120", 120), ("", 100), ("wide", 100), ("7", 40), ("-3", 100)]
)
def test_a_pipe_has_the_columns_of_the_environment(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert screen().width == width


@pytest.mark.slow(smaller="test_a_pipe_has_the_columns_of_the_environment")
def test_a_piped_command_has_them_too() -> None:
    def widest(columns: str) -> int:
        command = [sys.executable, "-m", "edgefl", "parts", "method"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": columns}
        )
        assert registry.names("method")[0] in done.stdout
        return max(map(len, done.stdout.splitlines()))

    assert widest("80") <= 80 < widest("140") <= 140


if __name__ == "__main__":
    SNAPSHOTS.mkdir(exist_ok=True)
    for name, (show, result) in TABLES.items():
        for width in WIDTHS:
            (SNAPSHOTS / f"{name}-{width}.txt").write_text(text(show, result(), width), encoding="utf-8")
