"""Published measurements of the profile library: what each row must have, its half, and what a wrong file is told."""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from edgefl.devices import device_names
from edgefl.devices.profile import hardware, library_files
from edgefl.errors import DeviceError
from tools.pages.measured import figures
from tools.published_steps.measurements import Measurement, Software, measurements, read_measurements

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
    known = [len(ROWS), len(devices & set(device_names())), len(devices - set(device_names()))]
    names = ("measurements", "shipped-devices", "other-processors")
    assert [figures()[f"seconds.{name}"] for name in names] == list(map(str, known))
    text = (Path(__file__).parents[3] / "docs/evidence/seconds.md").read_text()
    assert all(f"figure: seconds.{name} " in text for name in names)
    assert devices - set(device_names()) == set(library_files("hardware"))


def test_every_measurement_names_the_place_where_it_was_read() -> None:
    unread = {row.source.title for row in ROWS if not row.source.read}
    assert unread == {"federated-embedded-vision, results/blog/rpi4_bench_results.pkl"}
    for row in ROWS:
        assert row.source.url is not None and row.source.url.startswith("https://")
        assert len(row.source.quote) > 20, row
        assert any(digit.isdigit() for digit in row.source.quote), row


def test_no_measurement_is_listed_twice() -> None:
    keys = [
        (row.device, row.model, row.trained, row.batch, row.input, row.precision, row.optimizer, row.framework,
         row.measured, row.source.url)
        for row in ROWS
    ]  # fmt: skip
    twice = {key[:2] for key, times in Counter(keys).items() if times > 1}
    # published anew for a later version of the system, with another score
    # or two cards of one chip
    assert twice == {(name, "resnet50-cifar") for name in ("gpu-m4", "gpu-rtx-3090", "gpu-rtx-2080-ti")}
    assert len({(*key, row.value) for key, row in zip(keys, ROWS, strict=True)}) == len(ROWS)


RATE = r"fp(?:32|16): (\d+), fp(?:32|16)bs: (\d+)"
FIGURES = {
    "ml-energy/zeus": (r",(\d+),\w+,\d+,([\d.]+),([\d.]+)", lambda r, batch, epoch, watts: (epoch, batch, watts)),
    "xiaoran007/GPU-Insights": (RATE, lambda r, score, batch: (score / 10, batch, None)),
    "rasbt/machine-learning-notes": (r"evaluation: ([\d.]+) min", lambda r, minutes: (60 * minutes, r.batch, None)),
    "tlkh/tf-metal-experiments": (
        r"\| (\d+) \| (\d+) \w+/sec ?\| (\d+)W", lambda r, batch, rate, watts: (rate, batch, watts),
    ),
    "rpi4_bench_results.pkl": (r"batches = ([\d.]+) s$", lambda r, seconds: (seconds, r.batch, None)),
    "lambdal/deeplearning-benchmark": (
        r": ([\d.]+) samples/s, batch (\d+)$", lambda r, rate, batch: (rate, batch, None),
    ),
    "mrdbourke/mac-ml-speed-test": (r"^(\d+),([\d.]+) ", lambda r, batch, epoch: (epoch, batch, None)),
    "UbiquitousLearning": (
        r": ([\d.]+) ms \(batchsize is (\d+)\)(?:; (\d+) readings of .*: usb ([\d.]+) W, battery ([\d.]+) W)?$",
        lambda r, ms, batch, readings, usb, battery: (ms / 1e3, batch, usb + battery if readings >= 20 else None),
    ),
}  # fmt: skip
"""By a part of the source's address: the figures of a quote, and the value, batch and watts that they make of a row."""


def test_rows_have_the_figures_of_their_quotes() -> None:
    counts: Counter[str] = Counter()
    for row in ROWS:
        for source, (pattern, quoted) in FIGURES.items():
            if source in (row.source.url or "") and row.source.date.isoformat() >= "2026-11-27":
                said = re.search(pattern, row.source.quote)
                assert said is not None, row
                value, batch, watts = quoted(row, *map(float, said.groups(0)))
                assert row.value == pytest.approx(value, rel=1e-5) and row.batch == batch
                assert row.watts == (None if watts is None else pytest.approx(watts, rel=1e-5))
                counts[source] += 1
    assert counts == {
        "ml-energy/zeus": 65, "xiaoran007/GPU-Insights": 36, "rasbt/machine-learning-notes": 22,
        "tlkh/tf-metal-experiments": 12, "rpi4_bench_results.pkl": 63, "lambdal/deeplearning-benchmark": 30,
        "mrdbourke/mac-ml-speed-test": 50, "UbiquitousLearning": 41,
    }  # fmt: skip


def test_both_halves_have_measurements_on_several_devices() -> None:
    for half in ("fitted", "held-out"):
        assert len({row.device for row in ROWS if row.half == half}) >= 3
    assert {row.half for row in ROWS} == {"fitted", "held-out"}


def test_the_half_follows_from_device_and_model_alone(tmp_path: Path) -> None:
    (row,) = read(tmp_path, FILE)
    odd = int(sha256(b"jetson-nano-4gb\nresnet18").hexdigest()[:2], 16) % 2
    assert row.half == ("held-out" if odd else "fitted")
    for was, now in (("value: 800 ms", "value: 2 s"), ("batch: 8", "batch: 9"), ("org/page", "org/page2")):
        assert read(tmp_path, FILE.replace(was, now))[0].half == row.half
    other = {
        read(tmp_path, FILE.replace("resnet18", f"resnet{i}"))[0].half for i in range(20)
    }  # twenty fair coins agree once in half a million times
    assert other == {"fitted", "held-out"}


@pytest.mark.parametrize(
    ("framework", "software", "fuses"),
    [
        ("PyTorch 1.13.1, timm 0.9.10", Software("pytorch", (1, 13), False), False),
        ("PyTorch 1.12.0.dev20220518, MPS", Software("pytorch", (1, 12), False), False),
        ("PyTorch 2.7.1, Ultralytics 8.4", Software("pytorch", (2, 7), False), True),
        ("PyTorch, MPS", Software("pytorch", None, False), True),
        ("PyTorch with torch.compile, CUDA", Software("pytorch", None, True), True),
        ("TensorFlow with XLA, CUDA 12.5", Software("tensorflow", None, True), False),
        ("TensorFlow 2.15.0", Software("tensorflow", (2, 15), False), False),
        ("MNN CPU 4 threads", Software("mnn", None, False), False),
    ],
)
def test_the_software_is_told_by_its_first_words(
    tmp_path: Path, framework: str, software: Software, fuses: bool
) -> None:
    (row,) = read(tmp_path, FILE.replace("framework: PyTorch 1.4", f'framework: "{framework}"'))
    assert row.software == software and row.fuses_attention == fuses


@pytest.mark.parametrize(
    ("framework", "optimizer", "lists", "together"),
    [
        ("PyTorch 2.4", "Adam", True, True),
        ("PyTorch 2.4, MPS", "Adam", False, False),
        ("PyTorch, MPS", "SGD, momentum 0.9", False, False),
        ("PyTorch 1.13, NVIDIA container", "SGD, momentum 0.9", True, False),
        ("PyTorch 1.13, NVIDIA container", "FusedAdam", True, True),
        ("PyTorch 2.7, NVIDIA container", "BertAdam", True, False),
        ("TensorFlow, Metal", "Adam", False, True),
    ],
)
def test_which_optimizers_update_all_parameters_together(
    tmp_path: Path, framework: str, optimizer: str, lists: bool, together: bool
) -> None:
    text = FILE.replace("framework: PyTorch 1.4", f'framework: "{framework}"\n    optimizer: "{optimizer}"')
    (row,) = read(tmp_path, text)
    assert row.updates_together(lists) is together


def test_half_precision_is_that_of_autocast_or_of_the_model(tmp_path: Path) -> None:
    half = FILE.replace("precision: float32", "precision: float16\n    half: model")
    assert read(tmp_path, half)[0].half_model
    assert not read(tmp_path, half.replace("half: model", "half: autocast"))[0].half_model
    assert not read(tmp_path, FILE)[0].half_model
    for text, said in (
        (FILE.replace("precision: float32", "precision: float32\n    half: model"), ":9: .*half: model is of a half"),
        (half.replace("half: model", "half: weights"), "'autocast'"),
    ):
        with pytest.raises(DeviceError, match=said):
            read(tmp_path, text)


def test_joules_of_a_step_are_its_seconds_times_its_watts(tmp_path: Path) -> None:
    assert read(tmp_path, FILE)[0].joules_per_step is None
    (row,) = read(tmp_path, FILE.replace("value: 800 ms", "value: 800 ms\n    watts: 5 W"))
    assert row.joules_per_step == pytest.approx(4.0)


def test_hardware_that_was_measured_has_a_class_and_peaks() -> None:
    for name in library_files("hardware"):
        known = hardware(name)
        assert known.processor_class is not None and known.idle_watts < known.compute_watts
        for peak in (known.peak_tf32_flops_per_second, known.peak_float16_flops_per_second):
            assert peak is None or known.peak_flops_per_second <= peak <= 30 * known.peak_flops_per_second
        assert all(fact.source.url or not fact.source.read or fact.source.title == "Own estimate"
                   for fact in known.facts.values() if fact.confidence == "datasheet")  # fmt: skip


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
        ("measured: seconds_per_step", "measured: frames", 10, "measurements[0].measured: must be"),
        ("library: torchvision", "library: other", 5, "its architecture must be described"),
        ("batch: 8", "batch: 0", 6, "greater than 0"),
        ("batch: 8", "batch: 8\n    speed: fast", 7, "measurements[0].speed: Extra inputs"),
        ('      quote: "800 ms a step"\n', "", 12, "measurements[0].source.quote: is missing"),
        ("      url: https://example.org/page\n", "      read: false\n", 12, "that wasn't read requires its url"),
        ("value: 800 ms", "value: 800 ms\n    watts: 5 s", 12, "unknown unit 's' of a number of watts"),
        ("framework: PyTorch 1.4", 'framework: "1.4"', 9, "must begin with a name"),
        ("measurements:", "licence: []\nmeasurements:", 2, "licence must be a text"),
        ("measurements:", "measurments:", 2, "did you mean 'measurements'"),
        (FILE[FILE.index("measurements:") :], "measurements: []\n", 2, "must be a list of measurements, not []"),
        ("  - device", "  - just text\n  - device", 3, "measurements[0]: must be a"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, was: str, now: str, line: int, said: str) -> None:
    assert was in FILE
    with pytest.raises(DeviceError) as caught:
        read(tmp_path, FILE.replace(was, now))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'page.yaml'}:{line}: ") and said in message and "\n" not in message
