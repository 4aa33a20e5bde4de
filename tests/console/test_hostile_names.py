"""A stranger's text reaches neither the terminal as orders, nor a spreadsheet as formulas."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_names
import pytest
import yaml
from hostile_names import TEXT, harmful, places, replaced, typed

import edgefl
from edgefl.commands.compare.table import orderings_markdown
from edgefl.console.display import make_progress
from edgefl.drawing.text_tables import csv_cell, new_table, print_table, screen

NEEDED = {
    ("evaluation.json", "chance"), ("rounds.jsonl", "excluded"), ("rounds.jsonl", "server_works"),
    ("result.json", "totals"), ("clients.jsonl", "memory_bytes"),
    ("eligibility.jsonl", "*"),
}  # fmt: skip
"""Mappings whose names are fields that readers need."""


@pytest.fixture(scope="module")
def evil(tiny: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, whose texts and names of fields are hostile wherever its readers take them."""
    folder = tmp_path_factory.mktemp("evil") / "run"
    edgefl.run(tiny(schedule={"name": "end-to-end", "rounds": 1}, evaluation={"every": 1}), out=folder)
    made = 0
    for file, place in sorted(places(folder), key=lambda each: -len(each[1])):
        if place[-1] != "*" or not {(file, place[0]), (file, "*")} & NEEDED:
            replaced(folder, file, place, TEXT)
            made += 1
    assert made > 60
    return folder


COMMANDS = {
    "explain": ("explain", "RUN", "--round", "1"),
    "a client": ("explain", "RUN", "--round", "1", "--client", "0"),
    "resume": ("run", "--resume", "RUN"),
    "full": ("run", "--resume", "RUN", "--full"),
    "verify": ("run", "--resume", "RUN", "--verify"),
    "compare": ("compare", "RUN"),
    "compare --full": ("compare", "RUN", "--full"),
    "compare --csv": ("compare", "RUN", "--as", "csv"),
    "compare --as json": ("compare", "RUN", "--as", "json"),
    "explain --as json": ("explain", "RUN", "--round", "1", "--as", "json"),
    "trace": ("export", "RUN", "--to", "perfetto", "-o", "OUT/trace"),
    "export": ("export", "RUN", "--to", "csv", "-o", "OUT/csv\x1b[31m"),
    "report": ("report", "RUN", "-o", "OUT/page.html"),
    "figures": ("export", "RUN", "--to", "figures", "-o", "OUT/figures"),
}
MAY_FAIL = {"verify", "report", "figures"}
"""The rules compare kinds, which all are one now, and the page looks fields of costs up by their names."""


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_lets_a_strangers_text_steer_the_terminal(
    evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    words = [word.replace("RUN", str(evil)).replace("OUT", str(tmp_path)) for word in COMMANDS[command]]
    for terminal in (False, True):
        code, out = typed(*words, terminal=terminal)
        assert harmful(out, terminal=terminal) == []
        assert "Traceback" not in out and (code == 0 or command in MAY_FAIL), out
    for table in tmp_path.rglob("*.csv"):
        for line in csv.reader(io.StringIO(table.read_text(encoding="utf-8"))):
            for cell in line:
                assert not cell.startswith(("=", "+", "@", "\t", "\r")) and not re.match("-[^0-9.i]", cell)


def test_json_is_valid_and_loses_nothing(evil: Path) -> None:
    for terminal in (False, True):
        code, out = typed("explain", str(evil), "--round", "1", "--client", "0", "--as", "json", terminal=terminal)
        assert code == 0
        text = out[out.index("{") : out.rindex("}") + 1].replace("\r\n", "\n")
        assert (
            text.isascii()
            and "\x7f" not in text
            and TEXT
            in json.dumps(json.loads(text), ensure_ascii=False).replace(
                json.dumps(TEXT, ensure_ascii=False)[1:-1], TEXT
            )
        )


def test_warnings_logging_usage_and_the_display_go_through_the_boundary(
    tmp_path: Path, tiny: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    plug_in = tmp_path / "mine.py"
    plug_in.write_text(
        "import logging, sys, warnings\nimport edgefl\n"
        f"text = {TEXT!r}\n"
        "@edgefl.register('attack', 'noisy')\n"
        "class Noisy:\n    Options = None\n    def labels(self): ...\n    source = attacked_upload = labels\n"
        "warnings.simplefilter('always')\nwarnings.warn('warned ' + text)\nprint('printed ' + text)\n"
        "sys.stderr.write('written ' + text)\n"
        "logging.StreamHandler().emit(logging.makeLogRecord({'msg': 'logged ' + text}))\n"
    )
    file = tmp_path / "tiny.yaml"
    scenario = {"edgefl": 1, **tiny(schedule={"name": "end-to-end", "rounds": 1})}
    file.write_text(yaml.safe_dump(scenario))
    for terminal in (False, True):
        code, out = typed("validate", str(file), "--plugin", str(plug_in), terminal=terminal)
        assert harmful(out, terminal=terminal) == []
        assert all(word in out for word in ("warned =1+1", "printed =1+1", "written =1+1", "logged =1+1")), out
        for words in (["run", TEXT.replace("\0", "")], ["run", f"--{TEXT}"], ["compare", "a", TEXT], [TEXT]):
            code, out = typed(*words, terminal=terminal)
            assert code == 2 and harmful(out, terminal=terminal) == [] and "Traceback" not in out
    with hostile_names.streams(terminal=True) as written:
        with make_progress() as display:
            display("combination", {"label": TEXT, "index": 0, "of": 1})
            display("prepare", {"what": TEXT})
            sys.stderr.write(f"said {TEXT}\n")
            print(f"printed {TEXT}")
        table = new_table(TEXT, "n")
        table.add_row(TEXT, TEXT)
        print_table(screen(), table)
        screen().print(TEXT)
    assert harmful(written(), terminal=True) == [] and "said =1+1\\x1b" in written()


def test_a_formula_is_a_name_in_a_table_and_a_figure_stays() -> None:
    for name in ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "-cmd|' /C calc'!A0", "+", "\uff1d1"):
        assert csv_cell(name) == (name if name == "+" else f"'{name}")
    for figure in (
        -1.5,
        "-1.5",
        "+0.025 ± 0.014",
        "-1e-05",
        "-",
        "-1,234.5",
        "+0.31 %",
        None,
        True,
        "a=1",
        float("-inf"),
    ):
        assert csv_cell(figure) == figure


def test_markdown_shows_a_name_as_it_is() -> None:
    from edgefl.commands.compare.answer import Ordering

    odd = Ordering(title="a|b`c\\\x1b", metrics=[], seeds=[], rows=[], claims=[])
    text = orderings_markdown([odd], "test")
    assert text.startswith("### a\\|b\\`c\\\\\\\\x1b\n")


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def named(tiny: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose name has letters that ASCII lacks, in a folder of that name, beside its scenario."""
    folder = tmp_path_factory.mktemp("named")
    scenario = {"edgefl": 1, **tiny(name="größe", schedule={"name": "end-to-end", "rounds": 1})}
    (folder / "mine.yaml").write_text(yaml.safe_dump(scenario, allow_unicode=True), encoding="utf-8")
    edgefl.run(str(folder / "mine.yaml"), out=folder / "out")
    shutil.copytree(folder / "out", folder / os.fsdecode(b"caf\xe9"))
    return folder


def _plain(folder: Path, words: list[Any], **environment: str) -> subprocess.CompletedProcess[bytes]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    return subprocess.run(
        [sys.executable, "-m", "edgefl", *words],
        cwd=folder,
        env={**own, **environment},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("environment", [ASCII, {"PYTHONIOENCODING": "ascii"}], ids=["the C locale", "an ASCII stream"])
def test_a_terminal_that_cannot_print_a_name_prints_escapes(named: Path, environment: dict[str, str]) -> None:
    done = _plain(named, ["validate", "mine.yaml", "--as", "yaml"], **environment)
    assert done.returncode == 0 and b"gr\\xf6\\xdfe" in done.stdout and (done.stdout + done.stderr).isascii()
    assert b"Traceback" not in done.stderr


@pytest.mark.slow(smaller="test_a_terminal_that_cannot_print_a_name_prints_escapes")
@pytest.mark.parametrize("words", [
    ["explain", "out", "--round", "1"], ["compare", "out"], ["compare", "out", "--as", "csv"], ["report", "out"],
    ["export", "out", "--to", "figures", "--format", "svg"], ["export", "out", "--to", "perfetto"],
    ["export", "out", "--to", "csv", "-o", "csv"],
    ["validate", "mine.yaml", "--as", "yaml"], ["profile", "mine.yaml", "--full"], ["methods"],
], ids=" ".join)  # fmt: skip
def test_every_command_prints_where_only_ascii_is_known(named: Path, words: list[str]) -> None:
    done = _plain(named, words, **ASCII)
    assert done.returncode == 0 and b"Traceback" not in done.stderr and (done.stdout + done.stderr).isascii()


def test_a_name_that_the_locale_cannot_write_is_an_error_with_the_way_out(named: Path) -> None:
    done = _plain(named, ["run", "mine.yaml"], **ASCII)
    line = done.stderr.decode("ascii").splitlines()[-1]
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    assert line.startswith("edgefl: error: ") and "PYTHONUTF8=1" in line


@pytest.mark.parametrize(
    ("words", "code"), [(["compare"], 0), (["explain", "--round", "1", "--as", "json"], 2)], ids=str
)
def test_a_folder_whose_name_is_not_utf_8_is_named_by_escapes(named: Path, words: list[str], code: int) -> None:
    done = _plain(named, [*words, b"caf\xe9"], PYTHONUTF8="1")  # an answer in JSON can't hold such a name
    assert done.returncode == code and b"Traceback" not in done.stderr and b"\xe9" not in done.stdout + done.stderr
    assert code == 0 or b"caf\\udce9" in done.stderr
