"""From a scenario's text to plain data with lines: what is refused where, and overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import ScenarioError
from edgefl.scenario.document import KeyPosition, Override, read_file, read_text, read_value, set_value, spell, write


def test_places_of_keys_and_values() -> None:
    document = read_text("a:\n  b: {c: 1,\n      d: 2}\n\n  e:\n    - x\n    - y: >-\n        z\n", "f.yaml")
    lines = {spell(path): (place.key_line, place.value_line) for path, place in document.places.items()}
    assert lines == {
        "": (1, 1), "a": (1, 1), "a.b": (2, 2), "a.b.c": (2, 2), "a.b.d": (3, 3), "a.e": (5, 5), "a.e[0]": (6, 6),
        "a.e[1]": (7, 7), "a.e[1].y": (7, 7),
    }  # fmt: skip


def test_an_error_points_at_the_nearest_part_that_is_there() -> None:
    document = read_text("a:\n  b:\n    c: 1\n", "f.yaml")
    assert str(document.error(("a", "b", "c"), "no")) == "f.yaml:3: a.b.c: no"
    assert str(document.error(("a", "b", "missing", "deep"), "no")) == "f.yaml:2: a.b.missing.deep: no"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("- a\n", 1, "not a list"),
        ("\n\nhello\n", 3, "not a single value"),
        ("a: 1\na: 2\n", 2, "'a' is given twice (first on line 1)"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, "'b' is given twice (first on line 2)"),
        ("a: 1\nb: [1, 2\nc: 3\n", 2, "a '[' without a closing ']'"),
        ("a: 1\nb: {c: 2\n", 2, "a '{' without a closing '}'"),
        ("a: 1\nb: 'x\nc: 3\n", 2, "a quote that is never closed"),
        ("a: 1\n\tb: 2\n", 2, "a tab"),
        ("a: 1\nb: c: d\n", 2, "a second ':'"),
        ("a: 1\n b: 2\n", 2, "indentation"),
        ("a:\n  b: 1\n c: 2\n", 3, "indentation"),
        ("a: 1\nb\n", 2, "a key without a ':'"),
        ("a: 1\n---\nb: 2\n", 2, "more than one document"),
        ("a: 1\nb: *x\n", 2, "an alias"),
        ("a: 1\nb: @x\n", 2, "in quotes"),
        ("a: 1\nb: %x\n", 2, "in quotes"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]\n", 2, "scenarios can't have"),
        ("a: 1\nb: !!int '3'\n", 2, "scenarios can't have"),
        ("a: 1\nb: !mine 3\n", 2, "scenarios can't have"),
        ("a: 1\nb: &x [1, *x]\n", 2, "aliases contain themselves"),
        ("a: 1\n? [b]\n: 1\n", 2, "a key must be a word"),
        ("a: 1\n: 2\n", 2, "indentation"),
        ("a: 1\n'': 2\n", 2, "has no key"),
        ("a: 1\nb: 1e999\n", 2, "too large"),
        ("a: 1\nb: " + "9" * 5000, 2, "more than 100 characters"),
        ("a: 1\nb: \x07\n", 2, "U+0007"),
        ("[" * 5000, None, "nested too deeply"),
        ("", None, "empty"),
        ("# only a comment\n", None, "empty"),
    ],
)
def test_what_is_refused(text: str, line: int | None, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_text(text, "f.yaml")
    assert caught.value.file == "f.yaml"
    assert caught.value.line == line
    assert says in str(caught.value)


def test_aliases_that_unfold_without_end_are_refused() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ScenarioError, match="too many values"):
        read_text("\n".join(lines))


def test_an_alias_is_a_copy() -> None:
    assert read_text("a: &x {b: 1}\nc: *x\n").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_files(tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(ScenarioError) as caught:
            read_file(path, path.name)
        return str(caught.value)

    assert refused(tmp_path / "none.yaml") == "none.yaml: there is no such file"
    assert "folder" in refused(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("a: 1\nb: café\n".encode("latin-1"))
    assert refused(tmp_path / "latin.yaml").startswith("latin.yaml:2: the file isn't UTF-8 text (byte 0xe9)")
    (tmp_path / "wide.yaml").write_bytes("a: 1".encode("utf-16"))
    assert "UTF-8" in refused(tmp_path / "wide.yaml")
    (tmp_path / "marked.yaml").write_bytes("﻿a: 1\r\nb: 2\r\n".encode())
    assert read_file(tmp_path / "marked.yaml", "f").data == {"a": 1, "b": 2}
    assert refused(Path("/dev/null")).endswith("this isn't a regular file; a scenario is a YAML file")


def test_overrides_are_put_where_they_belong() -> None:
    document = read_text("a: {b: [1, {c: 2}]}\n", "f.yaml")
    value, places = read_value("[x, 1e-3]", "--set a.b[1].c=...")
    changed = set_value(document, Override(("a", "b", 1, "c"), value, {("a", "b", 1, "c"): KeyPosition("--set")}))
    assert changed.data == {"a": {"b": [1, {"c": ["x", 0.001]}]}}
    assert document.data == {"a": {"b": [1, {"c": 2}]}}
    assert set(places) == {(0,), (1,)}
    assert set_value(document, Override(("new", "deep"), 1, {})).data["new"] == {"deep": 1}
    with pytest.raises(ScenarioError, match=r"a\.b is a list of 2"):
        set_value(document, Override(("a", "b", 5), 1, {}))
    with pytest.raises(ScenarioError, match="has no keys"):
        set_value(document, Override(("a", "b", 0, "x"), 1, {}))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.sampled_from(
        ["on", "1e-3", "1:30", "0x1", "null", "~", "40%", "2024-01-02", "- a", "a: b", "#", "1_0", "=", "<<"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=10), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=10), plain, min_size=1, max_size=4))
def test_what_is_written_reads_back_equal_here_and_as_yaml_1_1(data: dict[str, Any]) -> None:
    text = write(data)
    assert read_text(text).data == data
    assert yaml.safe_load(text) == data


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_as_a_scenario_error(text: str) -> None:
    said = ""
    try:
        read_text(text, "f.yaml")
    except ScenarioError as error:
        said = str(error)
    assert not said or (said.startswith("f.yaml") and "tag:yaml.org" not in said)
