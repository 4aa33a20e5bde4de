"""A derived profile has the other's numbers and sources, and says of what was set where it is from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgefl.console import main
from edgefl.devices import device_names, link_names, load_device, load_link
from edgefl.devices.profile import library_files, read_device, read_link

LIKE = "raspberry-pi-4-4gb"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["devices", *words])
    return (int(ended.value.code or 0), *capsys.readouterr())


def test_what_is_not_set_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = typed(capsys, "new", "mine", "--like", LIKE, "--set", "idle_watts=2W", "--set", "title=Mine")
    assert (code, err) == (0, "") and out.splitlines() == [
        f"mine.yaml: a device as {LIKE}, but for idle_watts, title", "next: edgefl devices show ./mine.yaml",
    ]  # fmt: skip
    mine, other = read_device(Path("mine.yaml")), load_device(LIKE)
    assert (mine.name, mine.title, mine.idle_watts) == ("mine", "Mine", 2.0)
    assert {**mine.facts, "idle_watts": 0} == {**other.facts, "idle_watts": 0}
    assert (mine.processor, mine.type, mine.twin) == (other.processor, other.type, None) and other.twin
    code, out, _ = typed(capsys, "./mine.yaml")
    assert code == 0 and out.startswith("mine: Mine\n") and "edgefl devices new --set" in out


@pytest.mark.parametrize("name", [*device_names(), *link_names()])
def test_every_profile_can_be_derived_from_without_a_change(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(capsys, "new", "same", "--like", name)[0] == 0
    is_link = name in link_names()
    mine, other = (read_link(Path("same.yaml")), load_link(name)) if is_link else (
        read_device(Path("same.yaml")), load_device(name))  # fmt: skip
    # a share of a peak is fitted by the device's own published rows
    kept = {number for number, fact in other.facts.items() if fact.confidence != "fitted"}
    assert {number: mine.facts[number] for number in kept} == {number: other.facts[number] for number in kept}


@pytest.mark.parametrize("factor", [0.01, 0.5, 1.0, 3.0])
def test_a_range_is_as_wide_in_relation_to_the_value(factor: float, capsys: pytest.CaptureFixture[str]) -> None:
    for number, fact in load_link("lte").facts.items():
        if number == "jitter":
            continue
        value = fact.value * factor
        code, _, err = typed(capsys, "new", "mine", "--like", "lte", "--force", "--set", f"{number}={value!r}")
        assert code == 0, err
        mine = read_link(Path("mine.yaml")).facts[number]
        assert mine.value == pytest.approx(value) and mine.confidence == "estimated" and not mine.source.read
        # three digits are written
        assert (mine.low, mine.high) == pytest.approx((fact.low * factor, fact.high * factor), rel=6e-3)


def test_a_power_mode_and_a_file_can_be_derived_from(capsys: pytest.CaptureFixture[str]) -> None:
    mode = "jetson-orin-nano-8gb@7W"
    assert typed(capsys, "new", "a/slow", "--like", mode)[0] == 0
    assert typed(capsys, "new", "slower", "--like", "./a/slow.yaml", "--set", "battery_joules=10kJ")[0] == 0
    slower, other = read_device(Path("slower.yaml")), load_device(mode)
    assert slower.facts["compute_watts"] == other.facts["compute_watts"] and slower.modes == ()
    assert slower.facts["battery_joules"].low == slower.facts["battery_joules"].high == 10_000
    code, out, _ = typed(capsys, "new", "x", "--like", "lte", "--set", "loss=1%", "--as", "json")
    assert code == 0 and json.loads(out) == {
        "profile": "link",
        "file": "x.yaml",
        "like": "lte",
        "sets": ["loss"],
        "scaled": [],
    }


def test_memory_scales_what_is_usable_and_comments_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = typed(capsys, "new", "mine", "--like", "phone-mid", "--memory", "9GiB", "--set", "idle_watts=1W")
    assert (code, err) == (0, "")
    first = "mine.yaml: a device as phone-mid, but for ram_bytes, idle_watts, and scaled: usable_memory_bytes"
    assert out.splitlines()[0] == first
    mine, other = read_device(Path("mine.yaml")), load_device("phone-mid")
    # 6 GiB with 2.2 GiB usable (1.4 to 3.2): half as much again of both
    assert mine.ram_bytes == 9 * 2**30
    usable, theirs = mine.facts["usable_memory_bytes"], other.facts["usable_memory_bytes"]
    for found, expected in ((usable.value, theirs.value), (usable.low, theirs.low), (usable.high, theirs.high)):
        assert found == pytest.approx(1.5 * expected, rel=5e-3)
    assert usable.confidence == "estimated" and "scaled as ram_bytes is, in place of 2.2 GiB" in usable.source.quote
    lines = Path("mine.yaml").read_text().splitlines()
    marks = {lines[i + 1].split(":")[0]: line[2:] for i, line in enumerate(lines) if line.startswith("# ")}
    told = {"ram_bytes": "given", "idle_watts": "given", "usable_memory_bytes": "scaled with ram_bytes"}
    fields = {line.split(":")[0] for line in lines if line[0] not in " #"}
    assert {name: marks[name] for name in fields} == dict.fromkeys(fields, "copied from phone-mid") | told


def test_a_peak_scales_the_rates_that_a_profile_has_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    other = load_device("server-h200")
    half = f"peak_flops_per_second={other.peak_flops_per_second / 2!r}"
    code, _, err = typed(capsys, "new", "mine", "--like", "server-h200", "--set", half)
    assert (code, err) == (0, "")
    mine = read_device(Path("mine.yaml"))
    own = {n for n, fact in other.facts.items() if n.endswith("flops_per_second") and fact.confidence != "fitted"}
    assert len(own) >= 3
    for number in own:
        assert getattr(mine, number) == pytest.approx(getattr(other, number) / 2, rel=5e-3), number


WRONG = {
    ("--like", "raspberry-pi-4-5gb"): "unknown device or link 'raspberry-pi-4-5gb'; did you mean 'raspberry-pi-4-",
    ("--like", "jetson-orin-nano-8gb@9W"): "unknown power mode of jetson-orin-nano-8gb '9W'",
    ("--like", "campus"): "campus is a fleet, which a scenario derives itself: fleet: {like: campus, ...}",
    ("--like", "./gone.yaml"): "gone.yaml: can't be read: No such file or directory",
    ("--like", LIKE, "--set", "ram_byte=8GiB"): "unknown field of a device 'ram_byte'; did you mean 'ram_bytes'?",
    ("--like", LIKE, "--set", "ram_bytes"): "--set ram_bytes: write FIELD=VALUE, as in --set ram_bytes=8GiB",
    ("--like", LIKE, "--set", "ram_bytes=8 s"): "--set ram_bytes: '8 s': unknown unit 's' of a number of bytes",
    (
        "--like",
        LIKE,
        "--memory",
        "3GiB",
        "--set",
        "usable_memory_bytes=4GiB",
    ): "new.yaml: usable_memory_bytes can't be more than ram_bytes",
    ("--like", "lte", "--memory", "3GiB"): "unknown field of a link 'ram_bytes'",
    ("--like", LIKE, "--set", "idle_watts=30W"): "new.yaml: idle_watts is above compute_watts",
    ("--like", LIKE, "--set", "type=fone"): "unknown type of device 'fone'; did you mean 'phone'?",
    ("--like", LIKE, "--set", "processor=tensor-g3"): "new.yaml: processor: unknown processor 'tensor-g3'; known are "
    "discrete-gpu (2020, NVIDIA's Ampere, Ada, Hopper and Blackwell with memory of their own, behind an x86 core), ",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_what_is_wrong_is_a_line_and_nothing_is_written(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = typed(capsys, "new", "new", *words)
    assert (code, out) == (2, "") and err.count("\n") == 1 and WRONG[words] in err
    assert list(Path.cwd().iterdir()) == []


def test_a_file_that_is_there_stays(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("mine")
    code, _, err = typed(capsys, "new", "mine.yaml", "--like", "lte")
    assert code == 2 and "there is such a file already: choose another name, or add --force" in err
    assert Path("mine.yaml").read_text() == "mine"
    assert typed(capsys, "new", "mine.yaml", "--like", "lte", "--force")[0] == 0
    assert read_link(Path("mine.yaml")).name == "mine" and "lte" in library_files("networks")
