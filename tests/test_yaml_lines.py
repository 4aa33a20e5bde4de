"""YAML as every file of edgefl is read: one grammar of numbers and words, lines, and what is refused."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edgefl import devices, yaml_lines
from edgefl.devices.written_facts import read_written
from edgefl.errors import DeviceError, EdgeflError, ScenarioError
from edgefl.scenario.document import read_text, read_value
from edgefl.yaml_lines import KeyPath, KeyPosition, parse_yaml, write

SHIPPED = sorted((Path(__file__).parents[1]).glob("profiles/*/*.yaml")) + sorted(
    (Path(__file__).parents[1]).glob("scenarios/**/*.yaml")
)


def refuse(message: str, line: int | None, path: KeyPath) -> EdgeflError:
    return EdgeflError(f"{line}: {yaml_lines.spell(path)}: {message}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),  # YAML 1.1 wants 1.0e-3 and reads this as text
        ("1E3", 1000.0),
        (".5", 0.5),
        ("-2", -2),
        ("010", 10),  # not an octal
        ("+7", 7),
        ("-1.5E+2", -150.0),
        ("1.", 1.0),
        ("0x10", 16),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
        ("on", "on"),
        ("no", "no"),
        ("1:30", "1:30"),  # not 90
        ("2024-01-02", "2024-01-02"),  # not a date
        ("12..48 MiB", "12..48 MiB"),
        ("40%", "40%"),
        ("1_000", "1_000"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("=", "="),
        ("<<", "<<"),
        ("٣", "٣"),  # a digit, but not one of ours
    ],
)
def test_a_value_means_the_same_in_a_scenario_an_override_and_a_profile(text: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"title: mine\nkey: {text}\n", encoding="utf-8")
    for found in (
        read_text(f"key: {text}").data["key"],
        read_value(text, "--set")[0],
        read_written(path, "").data["key"],
    ):
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("title: a\nkey: 1\nkey: 2\n", 3, "the key 'key' is given twice (first on line 2)"),
        ("title: a\nkey: {b: 1, c: {d: {e: {f: 1,\n  f: 2}}}}\n", 3, "'f' is given twice"),
        ("title: a\nkey: 1e999\n", 2, "too large"),
        ("title: a\nkey: !!int '3'\n", 2, "can't have"),
        ("title: a\nkey: [1, 2\n", 2, "a '[' without a closing ']'"),
        ("title: a\nkey: b: c\n", 2, "a second ':'"),
        ("title: a\nkey: \x07\n", 2, "U+0007"),
        ("title: a\nkey: &x {b: *x}\n", 2, "aliases contain themselves"),
        ("[" * 5000, None, "nested too deeply"),
        ("[" * 200_000 + "]" * 200_000, None, "nested too deeply"),
    ],
)
def test_what_is_refused_is_refused_everywhere_with_its_line(
    text: str, line: int | None, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError) as of_scenario:
        read_text(text, str(path))
    with pytest.raises(DeviceError) as of_profile:
        read_written(path, "")
    assert says in str(of_scenario.value)
    where = f"{path}:{line}: " if line else f"{path}: "
    assert str(of_profile.value) == str(of_scenario.value).replace("scenarios can't have", "profiles can't have")
    assert str(of_profile.value).startswith(where)


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes("title: a\nkind: café\n".encode("latin-1"))
    with pytest.raises(DeviceError, match=r"mine\.yaml:2: the file isn't UTF-8 text \(byte 0xe9\)"):
        devices.read_device(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_both_parsers_read_the_shipped_files_alike(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text(encoding="utf-8")
    fast = parse_yaml(text, refuse)
    monkeypatch.setattr(yaml_lines, "_Fast", yaml_lines._Loader)  # as where PyYAML was built without libyaml
    assert parse_yaml(text, refuse) == fast


def test_devices_and_links_of_the_library_say_what_pyyaml_reads_in_them() -> None:
    def same(found: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict):
            return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
        return found == (str(wanted) if isinstance(wanted, datetime.date) else wanted)

    for path in SHIPPED:
        if path.parent.name in ("devices", "networks"):
            text = path.read_text(encoding="utf-8")
            assert same(parse_yaml(text, refuse)[0], yaml.safe_load(text)), path


def test_a_merge_takes_over_keys_where_it_is_asked_for() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc:\n  z: 5\n  <<: [*a, *b]\nd: {<<: *b, '<<': 6}\n"
    data, places = parse_yaml(text, refuse, file="f", merge=True)
    assert data["c"] == {"x": 1, "y": 2, "z": 5} == yaml.safe_load(text)["c"]
    assert data["d"] == {"y": 3, "z": 4, "<<": 6}
    assert places["c", "x"].key_line == 1 and places["c", "z"].key_line == 4
    with pytest.raises(EdgeflError, match="2: b: '<<' must name a mapping"):
        parse_yaml("a: 1\nb: {<<: 3}\n", refuse, merge=True)
    assert parse_yaml("a: {<<: 3}", refuse)[0] == {"a": {"<<": 3}}


def test_places_and_the_nearest_of_them() -> None:
    data, places = parse_yaml("a:\n  b:\n    c:\n      1\n", refuse, file="f")
    assert data == {"a": {"b": {"c": 1}}} and places["a", "b", "c"] == KeyPosition("f", 3, 4)
    assert yaml_lines.nearest(places, ("a", "b", "c")) == ("f", 4)
    assert yaml_lines.nearest(places, ("a", "b", "c"), at_key=True) == ("f", 3)
    assert yaml_lines.nearest(places, ("a", "b", "nothing", 3)) == ("f", 2)
    assert yaml_lines.nearest({}, ("a",)) is None
    assert parse_yaml("# nothing\n", refuse) == (None, {})


@given(st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(["1e3", "0x10", "2024-01-02", "on", "<<"]))
def test_a_text_is_written_so_that_it_reads_back(text: str) -> None:
    assert parse_yaml(write({"quote": text}, width=40), refuse, merge=True)[0] == {"quote": text}
