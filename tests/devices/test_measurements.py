"""Published measurements of the profile library: what each row must have, its half, and what a wrong file is told."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from edgefl.devices import device_names
from edgefl.devices.measurements import Measurement, measurements, read_measurements
from edgefl.errors import DeviceError

ROWS = measurements()
FILE = """title: "A page"
measurements:
  - device: jetson-nano-4gb
    model: resnet18
    library: torchvision
    batch: 8
    input: [3, 224, 224]
    precision: float32
    framework: PyTorch 1.4
    measured: seconds_per_step
    value: 800 ms
    source:
      title: "A page"
      url: https://example.org/page
      date: 2026-11-23
      quote: "800 ms a step"
"""


def read(tmp_path: Path, text: str) -> list[Measurement]:
    (path := tmp_path / "page.yaml").write_text(text)
    return read_measurements(path)


def test_the_docs_say_how_many_measurements_there_are() -> None:
    devices = {row.device for row in ROWS}
    text = (Path(__file__).parents[2] / "docs/explanation/accuracy.md").read_text()
    said = re.search(r"(\d+) measurements on (\d+) devices", text)
    assert said is not None
    assert [int(number) for number in said.groups()] == [len(ROWS), len(devices)]
    assert devices <= set(device_names())


def test_every_measurement_names_the_place_where_it_was_read() -> None:
    for row in ROWS:
        assert row.source.read and row.source.url is not None and row.source.url.startswith("https://")
        assert len(row.source.quote) > 20, row
        assert any(digit.isdigit() for digit in row.source.quote), row


def test_no_measurement_is_listed_twice() -> None:
    keys = [
        (row.device, row.model, row.trained, row.batch, row.input, row.precision, row.measured, row.source.url)
        for row in ROWS
    ]
    assert len(keys) == len(set(keys))


def test_both_halves_have_measurements_on_several_devices() -> None:
    for half in ("fitted", "held-out"):
        assert len({row.device for row in ROWS if row.half == half}) >= 3
    assert {row.half for row in ROWS} == {"fitted", "held-out"}


def test_the_half_follows_from_device_and_model_alone(tmp_path: Path) -> None:
    (row,) = read(tmp_path, FILE)
    odd = int(sha256(f"jetson-nano-4gb\n{row.model}".encode()).hexdigest()[:2], 16) % 2
    assert row.half == ("held-out" if odd else "fitted")
    for was, now in (("value: 800 ms", "value: 2 s"), ("batch: 8", "batch: 9"), ("org/page", "org/other")):
        assert read(tmp_path, FILE.replace(was, now))[0].half == row.half
    other = {
        read(tmp_path, FILE.replace(f"model: {row.model}", f"model: net{i}"))[0].half for i in range(20)
    }  # twenty fair coins agree once in half a million times
    assert other == {"fitted", "held-out"}
    per_model: dict[tuple[str, str], set[str]] = {}
    for known in ROWS:
        per_model.setdefault((known.device, known.model), set()).add(known.half)
    assert all(len(halves) == 1 for halves in per_model.values())


@pytest.mark.parametrize(
    ("figure", "seconds"),
    [
        ("measured: seconds_per_step\n    value: 800 ms", 0.8),
        ("measured: steps_per_second\n    value: 2.5 it/s", 0.4),
        ("measured: samples_per_second\n    value: 16 img/s", 0.5),
        ("measured: seconds_per_epoch\n    samples: 81\n    value: 11 min", 60.0),  # 11 steps, the last of one sample
        ("measured: peak_memory\n    value: 800 MiB", None),
        ("measured: power\n    value: 8 W", None),
        ("measured: energy\n    value: 8 kJ", None),
    ],
)
def test_seconds_of_a_step_follow_from_every_kind_of_duration(
    tmp_path: Path, figure: str, seconds: float | None
) -> None:
    (row,) = read(tmp_path, FILE.replace("measured: seconds_per_step\n    value: 800 ms", figure))
    assert row.seconds_per_step == (None if seconds is None else pytest.approx(seconds))


def test_all_sources_in_the_library_give_plausible_steps() -> None:
    for row in ROWS:
        if (seconds := row.seconds_per_step) is not None:
            assert 1e-4 < seconds < 1000, row


@pytest.mark.parametrize(
    ("was", "now", "line", "said"),
    [
        (FILE[FILE.index("    source:") :], "", 3, "has no source; a source is {title, url, date, quote}"),
        ("device: jetson-nano-4gb", "device: jetson-nan", 3, "unknown device 'jetson-nan'; did you mean"),
        ("value: 800 ms", "value: 800 mss", 11, "unknown unit 'mss'"),
        ("value: 800 ms", "value: 0 s", 11, "must be positive"),
        ("measured: seconds_per_step", "measured: steps_per_second", 11, "unknown unit 'ms' of a rate of steps"),
        ("measured: seconds_per_step", "measured: seconds_per_epoch", 10, "require samples"),
        ("measured: seconds_per_step", "measured: frames", 10, "measurements[0].measured: Input should be"),
        ("library: torchvision", "library: other", 5, "its architecture must be described"),
        ("batch: 8", "batch: 0", 6, "greater than 0"),
        ("batch: 8", "batch: 8\n    speed: fast", 7, "measurements[0].speed: Extra inputs"),
        ('      quote: "800 ms a step"\n', "", 12, "measurements[0].source.quote: Field required"),
        ('"800 ms a step"', '"800 ms a step"\n      read: false', 12, "requires a source that was read"),
        ("measurements:", "measurments:", 2, "did you mean 'measurements'"),
        (FILE[FILE.index("measurements:") :], "measurements: []\n", 2, "must be a list of measurements, not []"),
        ("  - device", "  - just text\n  - device", 3, "measurements[0]: Input should be"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, was: str, now: str, line: int, said: str) -> None:
    assert was in FILE
    with pytest.raises(DeviceError) as caught:
        read(tmp_path, FILE.replace(was, now))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'page.yaml'}:{line}: ") and said in message and "\n" not in message
