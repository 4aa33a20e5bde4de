"""The profile library: complete, sourced, consistent; and what a broken profile is told."""

from __future__ import annotations

import dataclasses
import datetime
import math

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from edgefl import devices
from edgefl.devices import Fleet, FleetOptions
from edgefl.errors import DeviceError, UnknownName


@pytest.mark.parametrize("name", devices.device_names())
def test_every_number_of_a_device_has_a_source(name):
    _check(devices.load_device(name))


MODES = [f"{name}@{mode}" for name in devices.device_names() for mode in devices.load_device(name).modes]


@pytest.mark.parametrize("name", MODES)
def test_every_number_of_a_power_mode_has_a_source(name):
    device, base = devices.load_device(name), devices.load_device(name.partition("@")[0])
    _check(device)
    assert (device.name, device.type, device.modes, device.twin) == (name, base.type, (), None)
    assert device.ram_bytes == base.ram_bytes and device.facts["jitter"] == base.facts["jitter"]
    gain = device.peak_flops_per_second / base.peak_flops_per_second
    for precision in ("float32", "tf32", "float16", "bfloat16"):
        assert device.rate(precision) == pytest.approx(gain * base.rate(precision), rel=2e-3)
    assert {n for n in device.facts if "peak" in n} == {n for n in base.facts if "peak" in n}
    watts = name.partition("@")[2].replace("Max-Q", "7.5W")
    assert device.compute_watts == float(watts.removesuffix("W"))


def test_modes_that_vendors_publish():
    """The Orin Nano's 7 W leave two of four TPCs: 512 cores at 408 MHz, launched by a core at 960 MHz.

    A TPC has eight tensor cores, each with 256 multiply-adds of halves a cycle.
    """
    assert len(MODES) == 10
    slow, usual = (devices.load_device(f"jetson-orin-nano-8gb{mode}") for mode in ("@7W", ""))
    assert slow.peak_flops_per_second == pytest.approx(512 * 408e6 * 2, rel=1e-3)
    assert slow.peak_float16_flops_per_second == pytest.approx(2 * 8 * 256 * 408e6 * 2, rel=1e-3)
    assert slow.flops_per_second == pytest.approx(usual.flops_per_second * (512 * 408) / (1024 * 625), rel=1e-3)
    assert slow.seconds_per_operator == pytest.approx(25e-6 * 1510 / 960, rel=1e-3)
    assert (slow.compute_watts, slow.memory_bytes_per_second) == (7, usual.memory_bytes_per_second)
    fast = devices.load_device("jetson-orin-nano-8gb@25W")
    assert fast.memory_bytes_per_second == pytest.approx(1.5 * usual.memory_bytes_per_second)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jetson-orin-nano-8gb@8W", r"unknown power mode of jetson-orin-nano-8gb '8W'; allowed: 25W, 7W"),
        ("jetson-orin-nano-8bg@7W", "unknown device 'jetson-orin-nano-8bg'; did you mean 'jetson-orin-nano-8gb'"),
        ("raspberry-pi-5-8gb@7W", "raspberry-pi-5-8gb has one mode only"),
    ],
)
def test_an_unknown_mode(name, said):
    with pytest.raises(UnknownName, match=said):
        devices.load_device(name)
    with pytest.raises(ValidationError, match=said):
        FleetOptions.model_validate({"devices": {name: 1}})


@pytest.mark.parametrize(
    ("modes", "line", "said"),
    [
        ({"slow": {}}, 1, "modes.slow: has no numbers"),
        ({"slow": {"compute_wats": 3}}, 2, "compute_wats is no number of a device; did you mean 'compute_watts'"),
        ({"slow": {"compute_watts": 3}}, 2, "compute_watts: "),
        ([1], 0, "modes must be a mapping"),
        ({"slow": 3}, 1, "modes.slow must be a mapping"),
    ],
)
def test_a_mode_that_is_wrong(tmp_path, profile, modes, line, said):
    path = _written(tmp_path, {**profile, "modes": modes})
    first = path.read_text().splitlines().index("modes:") + 1
    with pytest.raises(DeviceError, match=rf":{first + line}: {said}"):
        devices.read_device(path)


def test_all_errors_of_a_device_are_told_at_once(tmp_path, profile):
    del profile["ram_bytes"]
    entry = {name: value for name, value in profile["jitter"].items() if name not in ("confidence", "source")}
    profile |= {"type": "toaster", "wats": 3, "jitter": entry, "idle_watts": "2 W"}
    profile["flops_per_second"] = _estimated(profile, "900 TFLOPS")
    profile["modes"] = {"slow": {"compute_wats": 3, "peak_wats": 3}, "fast": {}}
    path = _written(tmp_path, profile)
    lines = path.read_text().splitlines()
    with pytest.raises(DeviceError) as caught:
        devices.read_device(path)
    told = str(caught.value).splitlines()
    fields = (
        "type: ", "wats is", "jitter.confidence: ", "jitter.source: ", "idle_watts: ", "flops_per_second is above",
        "compute_wats is", "peak_wats is", "modes.fast: ",
    )  # fmt: skip
    assert len(told) == len(fields) + 1 and told[-1].startswith(f"{path}: ram_bytes is missing from a device")
    assert any(
        line.partition(": ")[2].startswith("idle_watts: must be a mapping; a number is {value,") for line in told
    )
    for field in fields:
        (line,) = [each for each in told if each.partition(": ")[2].startswith(field)]
        name = field.removesuffix(" is above").split()[0].strip(":").removeprefix("modes.").partition(".")[0]
        number = int(line.partition(": ")[0].rpartition(":")[2])
        assert lines[number - 1].strip().startswith(f"{name}:")
    assert told == sorted(told[:-1], key=lambda each: int(each.split(":")[1])) + told[-1:]


def test_all_errors_of_a_link_are_told_at_once(tmp_path, lte):
    path = _written(tmp_path, {**lte, "loss": {**lte["loss"], "value": 1, "range": "0..1"}, "latency_seconds": 3})
    with pytest.raises(DeviceError, match=r"(?s)latency_seconds: .*\n.*loss: must be below 100 %|loss.*\n.*latency"):
        devices.read_link(path)


def test_a_mode_of_ones_own_file(tmp_path, profile):
    watts = {**profile["compute_watts"], "value": "3 W", "range": "1..5 W"}
    path = _written(tmp_path, {**profile, "idle_watts": {**profile["idle_watts"], "value": "1 W", "range": "1 W"},
                               "modes": {"slow": {"compute_watts": watts}}})  # fmt: skip
    assert devices.load_device(str(path)).modes == ("slow",)
    slow = devices.load_device(f"{path}@slow")
    assert (slow.name, slow.compute_watts) == (f"{path.stem}@slow", 3)


def test_a_fleet_draws_devices_in_their_modes():
    options = FleetOptions.model_validate({"devices": {"jetson-orin-nano-8gb@7W": 40, "jetson-orin-nano-8gb": 60}})
    fleet = Fleet.draw(options, 100, 1)
    counts = np.bincount(fleet.device_index)
    assert {d.name: n for d, n in zip(fleet.devices, counts, strict=True)} == {
        "jetson-orin-nano-8gb@7W": 40, "jetson-orin-nano-8gb": 60,
    }  # fmt: skip


@pytest.mark.parametrize("name", devices.link_names())
def test_every_number_of_a_link_has_a_source(name):
    _check(devices.load_link(name))


def _check(profile):
    texts = {"name", "title", "type", "twin", "modes", "facts", "processor", "processor_class", "trace", "capped"}
    numbers = {f.name for f in dataclasses.fields(profile)} - texts
    assert set(profile.facts) <= numbers
    for absent in numbers - set(profile.facts):
        assert getattr(profile, absent) in (None, math.inf, 1.0, 0.0)
    for number, fact in profile.facts.items():
        assert fact.low <= fact.value <= fact.high
        assert getattr(profile, number) == fact.value
        assert fact.source.title
        assert fact.source.quote
        assert fact.source.date <= datetime.date(2100, 1, 1)
        if fact.confidence == "measured":
            assert fact.source.read
            assert any(character.isdigit() for character in fact.source.quote)
        if fact.source.title == "Own estimate":
            assert fact.confidence == "estimated"


RATES = {f"{precision}flops_per_second" for precision in ("", "tf32_", "float16_", "bfloat16_")}


@pytest.mark.parametrize("name", devices.device_names())
def test_a_rate_of_training_is_its_class_share_of_a_peak(name):
    device = devices.load_device(name)
    written = devices.profile_keys(devices.library_folder() / "devices" / f"{name}.yaml")
    assert "processor" in written and not written & RATES and device.processor_class
    peaks = {f"peak_{rate}" for rate in RATES} & written
    assert "peak_flops_per_second" in peaks and {f"peak_{rate}" for rate in RATES & set(device.facts)} == peaks
    for rate in RATES & set(device.facts):
        fact = device.facts[rate]
        assert fact.confidence == "fitted"
        assert 0 < fact.low < fact.value < fact.high and fact.value <= getattr(device, f"peak_{rate}")


def test_the_library_spans_the_edge():
    assert len(devices.device_names()) >= 10
    assert len(devices.link_names()) >= 12
    assert len(devices.fleet_names()) >= 5
    slow, fast = devices.load_link("lora-sf7"), devices.load_link("ethernet-gigabit")
    assert fast.upload_goodput / slow.upload_goodput > 1e6
    rates = [devices.load_device(name).flops_per_second for name in devices.device_names()]
    assert max(rates) / min(rates) > 1000


@pytest.mark.parametrize("name", devices.fleet_names())
def test_a_fleet_of_the_library_is_one_that_can_be_drawn(name):
    found = devices.fleet_profile(name)
    assert found.title and found.sources.keys() == found.fields.keys()
    assert not (found.confidence == "measured" and not all(source.read for source in found.sources.values()))
    options = FleetOptions.model_validate({"like": name})
    assert {device.name for device in Fleet.draw(options, 200, 1).devices} == set(options.devices)


def test_rates_by_precision(tmp_path, profile):
    plain = devices.load_device("raspberry-pi-4-4gb")
    assert {plain.rate(precision) for precision in (*devices.PRECISIONS, "tf32")} == {plain.flops_per_second}
    profile["bfloat16_flops_per_second"] = _estimated(profile, "20 GFLOP/s")
    half = devices.read_device(_written(tmp_path, profile))
    assert (half.rate("float16"), half.rate("bfloat16")) == (half.flops_per_second, 20e9)
    card = devices.load_device("server-h200")
    assert card.rate("float32") < card.rate("tf32") < card.rate("float16")
    with pytest.raises(UnknownName, match="did you mean 'float16'"):
        half.rate("flot16")


def test_a_rate_of_ones_own_replaces_that_of_the_class(tmp_path, profile):
    profile["flops_per_second"] = _estimated(profile, "9 GFLOP/s")
    own = devices.read_device(_written(tmp_path, profile))
    assert (own.flops_per_second, own.facts["flops_per_second"].confidence) == (9e9, "estimated")
    assert own.processor_class == "cortex-a72"
    del profile["processor"]
    classless = devices.read_device(_written(tmp_path, profile))
    assert (classless.flops_per_second, classless.processor_class) == (9e9, None)
    del profile["flops_per_second"]
    assert "flops_per_second is missing" in _refused(tmp_path, profile)


def test_a_file_of_an_unknown_name_is_told_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "town.yaml").write_text("title: x")
    with pytest.raises(UnknownName, match=r"unknown link 'town'; a file is named by its path: \./town\.yaml"):
        devices.load_link("town")


def test_an_unknown_processor_is_refused(tmp_path, profile):
    said = _refused(tmp_path, profile | {"processor": "cortex-a7"})
    assert "processor: unknown processor 'cortex-a7'; did you mean 'cortex-a7" in said
    assert int(said.removeprefix(str(tmp_path / "broken.yaml")).split(":")[1]) == list(profile).index("processor") + 1
    assert "processor" in _refused(tmp_path, profile | {"processor": 3})
    without = {name: value for name, value in profile.items() if name not in ("processor", "flops_per_second")}
    assert "flops_per_second is missing from a device: give it, or name the class of its" in _refused(tmp_path, without)
    own = {"type": "cpu", "arithmetic": {"convolution": 0.4}, "memory": {}}
    assert "processor.arithmetic: the share of products is missing" in _refused(tmp_path, profile | {"processor": own})


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(1e-3, 1e5), st.floats(0.05, 1.0)
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_hot_device_slows_down(seconds, after, share):
    cool = np.sort(np.array(seconds))
    hot = dataclasses.replace(
        devices.load_device("raspberry-pi-4-4gb"), throttle_after_seconds=after, throttled_share=share
    ).with_throttling(cool)
    assert np.all(hot[cool <= after] == cool[cool <= after])
    assert np.all(np.diff(hot) >= 0) and np.all(hot >= cool * (1 - 1e-12)) and np.all(hot <= cool / share * (1 + 1e-12))
    late = cool > after
    np.testing.assert_allclose((hot[late] - after) * share, cool[late] - after, rtol=1e-9, atol=1e-9)


def test_a_device_that_never_gets_hot_takes_what_it_takes():
    seconds = np.array([0.0, 1.0, np.inf])
    never = dataclasses.replace(devices.load_device("raspberry-pi-4-4gb"), throttle_after_seconds=np.inf)
    assert np.array_equal(never.with_throttling(seconds), seconds)


def test_derived_figures(tmp_path, profile):
    profile["flops_per_second"] = _estimated(profile, "14.4 GFLOP/s")
    board = devices.read_device(_written(tmp_path, profile))
    found = devices.derived_of_device(board)
    assert found["flops_per_joule"] == 14.4e9 / 7.2
    assert found["bytes_per_flop"] == pytest.approx(5.56e9 / 14.4e9)
    assert found["available_memory_bytes"] == board.usable_memory_bytes - board.runtime_overhead_bytes
    assert "battery_seconds" not in found
    link = devices.load_link("lte")
    assert link.download_goodput == pytest.approx(13e6 * 0.97)
    moved = devices.derived_of_link(link)
    assert moved["upload_seconds_per_megabyte"] == pytest.approx(8 / (6 * 0.97))
    assert moved["upload_joules_per_megabyte"] == pytest.approx(8 / (6 * 0.97) * 3.9)


def test_a_file_of_ones_own(tmp_path, profile, monkeypatch):
    _written(tmp_path, profile)
    monkeypatch.chdir(tmp_path)
    for name in ("./broken.yaml", "broken.yaml", str(tmp_path / "broken.yaml")):
        assert devices.load_device(name).ram_bytes == 4 * 2**30
    fleet = Fleet.draw(FleetOptions(devices={"./broken.yaml": "50%", "phone-mid": "50%"}), 4, 1)
    assert [device.name for device in fleet.devices] == ["broken", "phone-mid"]
    with pytest.raises(ValidationError, match=r"nosuch\.yaml: can't be read"):
        FleetOptions(devices={"nosuch.yaml": "100%"})


def test_published_figures():
    assert devices.load_device("jetson-nano-4gb").peak_flops_per_second == pytest.approx(128 * 2 * 0.921e9, rel=1e-3)
    assert devices.load_device("jetson-orin-nano-8gb").peak_flops_per_second == 1024 * 2 * 0.625e9
    assert devices.load_device("raspberry-pi-5-8gb").peak_flops_per_second == 4 * 2.4e9 * 16
    assert devices.load_device("raspberry-pi-4-4gb").ram_bytes == 4 * 2**30
    assert devices.load_link("lte").download_bits_per_second == 13e6


def test_unknown_names():
    with pytest.raises(UnknownName, match="did you mean 'raspberry-pi-4-4gb'"):
        devices.load_device("raspbery-pi-4-4gb")
    with pytest.raises(UnknownName, match="did you mean 'wifi-5'"):
        devices.load_link("wifi5")
    with pytest.raises(DeviceError, match="can't be read: No such file"):
        devices.load_device("../networks/lte")


@pytest.fixture
def profile():
    path = devices.library_folder() / "devices" / "raspberry-pi-4-4gb.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture
def lte():
    return yaml.safe_load((devices.library_folder() / "networks" / "lte.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def phones():
    return yaml.safe_load((devices.library_folder() / "fleets" / "phones.yaml").read_text(encoding="utf-8"))


def _written(tmp_path, profile):
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(profile, sort_keys=False), encoding="utf-8")
    return path


def _estimated(profile, rate):
    """An own number of this rate, with the peak's source."""
    return profile["peak_flops_per_second"] | {"value": rate, "range": rate, "confidence": "estimated"}


def _refused(tmp_path, profile, read=devices.read_device):
    path = _written(tmp_path, profile)
    with pytest.raises(DeviceError) as caught:
        read(path)
    message = str(caught.value)
    assert all(line.startswith(str(path)) for line in message.splitlines())
    return message


def test_a_number_without_a_source_is_refused(tmp_path, profile):
    del profile["compute_watts"]["source"]
    assert "compute_watts.source" in _refused(tmp_path, profile)


def test_a_source_without_a_quote_is_refused(tmp_path, profile):
    profile["compute_watts"]["source"]["quote"] = ""
    assert "compute_watts.source.quote" in _refused(tmp_path, profile)


def test_a_bare_number_is_refused(tmp_path, profile):
    profile["ram_bytes"] = "4 GiB"
    assert "ram_bytes" in _refused(tmp_path, profile)


def test_missing_and_unknown_numbers_are_refused(tmp_path, profile):
    profile["ram"] = profile.pop("ram_bytes")
    both = _refused(tmp_path, profile)
    assert "ram is not a field of a device" in both and "ram_bytes is missing" in both
    del profile["ram"]
    assert "ram_bytes is missing" in _refused(tmp_path, profile)


def test_a_value_outside_its_range_is_refused(tmp_path, profile):
    profile["compute_watts"]["range"] = "1..2 W"
    assert "outside its range" in _refused(tmp_path, profile)


def test_no_file_calls_a_number_fitted(tmp_path, profile):
    profile["compute_watts"]["confidence"] = "fitted"
    assert "compute_watts.confidence: must be 'measured', 'datasheet' or 'estimated'" in _refused(tmp_path, profile)


def test_a_wrong_unit_is_refused(tmp_path, profile):
    profile["compute_watts"]["value"] = "7 GB"
    assert "compute_watts" in _refused(tmp_path, profile)


def test_zero_is_refused_where_something_divides_by_it(tmp_path, profile):
    profile["memory_bytes_per_second"] |= {"value": 0, "range": "0..1"}
    assert "must be positive" in _refused(tmp_path, profile)


def test_unread_is_not_measured(tmp_path, profile):
    profile["compute_watts"]["source"]["read"] = False
    assert "measured" in _refused(tmp_path, profile)


def test_faster_than_the_peak_is_refused(tmp_path, profile):
    profile["flops_per_second"] = _estimated(profile, "1 TFLOP/s")
    assert "peak" in _refused(tmp_path, profile)


@pytest.mark.parametrize("text", ["- a\n- b\n", "title: [\n", "just words", "", "title: a\n? [1]\n: 2\n", "[" * 5000])
def test_files_that_are_no_profile(tmp_path, text):
    path = tmp_path / "broken.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeviceError, match=r"broken\.yaml") as caught:
        devices.read_device(path)
    assert "\n" not in str(caught.value)


def test_an_error_names_the_line(tmp_path, profile):
    del profile["compute_watts"]["source"]["quote"]
    message = _refused(tmp_path, profile)
    lines = (tmp_path / "broken.yaml").read_text().splitlines()
    line = int(message.removeprefix(str(tmp_path / "broken.yaml")).split(":")[1])
    block = lines.index("compute_watts:") + 1
    assert block <= line < block + 8 and "source: {title, date, quote}" in message


@pytest.mark.parametrize(
    ("number", "entry", "told"),
    [
        ("storage_bytes_per_second", {"value": 0, "range": "0..1"}, "storage_bytes_per_second: must be positive"),
        ("float16_flops_per_second", {"value": "9 TFLOP/s", "range": "9 TFLOP/s"}, "more than 64 times peak"),
        ("throttled_share", {"value": "80%", "range": "50..100%"}, "throttled_share is given alone"),
        ("throttle_after_seconds", {"value": "5 min", "range": "5 min"}, "throttle_after_seconds is given alone"),
        ("throttled_share", {"value": "180%", "range": "50..100%"}, "is too large: a share must be between 0 and 1"),
        ("battery_joules", {"value": 0, "range": "0"}, "battery_joules: must be positive"),
        ("jitter", {"value": 12, "range": "0..20"}, "jitter: the sigma of a lognormal factor is at most 3"),
        ("usable_memory_bytes", {"value": "8 GiB", "range": "8 GiB"}, "can't be more than ram_bytes"),
        ("idle_watts", {"value": "80 W", "range": "80 W"}, "idle_watts is above compute_watts"),
    ],
)
def test_numbers_that_make_no_sense(tmp_path, profile, number, entry, told):
    for other in ("throttled_share", "throttle_after_seconds"):
        profile.pop(other, None)
    profile[number] = profile["jitter"] | {"confidence": "estimated"} | entry
    assert told in _refused(tmp_path, profile)


def test_types_and_twins(tmp_path, profile):
    assert devices.read_device(_written(tmp_path, profile | {"twin": "A list"})).twin == "A list"
    assert "'toaster' is not one of microcomputer" in _refused(tmp_path, profile | {"type": "toaster"})
    assert "twin must be a text" in _refused(tmp_path, profile | {"twin": 3})
    assert "did you mean 'type'" in _refused(tmp_path, {"types": "phone", **profile})
    del profile["type"]
    assert "type is missing" in _refused(tmp_path, profile)


@pytest.mark.parametrize(
    ("number", "entry", "told"),
    [
        ("upload_bits_per_second", {"value": 0, "range": "0"}, "upload_bits_per_second: must be positive, not 0"),
        ("loss", {"value": "100%", "range": "100%"}, "has no goodput"),
        ("loss", {"value": 2, "range": "2"}, "between 0 and 1"),
        ("latency_seconds", {"value": -1, "range": "0"}, "latency_seconds"),
    ],
)
def test_links_that_make_no_sense(tmp_path, lte, number, entry, told):
    lte[number] = lte[number] | entry
    assert told in _refused(tmp_path, lte, devices.read_link)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"source": None}, "source: must be a mapping"),
        ({"sources": {"links": {"title": "t", "date": "2026-01-01"}}}, "sources.links.quote: is missing"),
        (
            {"sources": {"link": {"title": "t", "date": "2026-01-01", "quote": "q"}}},
            "sources.link: link is not a field of this fleet; did you mean 'links'?",
        ),
        ({"confidence": "sure"}, "'sure' is not one of measured, datasheet, estimated"),
        ({"fleet": {}}, "must be a mapping of a fleet's fields, not {}"),
        ({"fleet": {"like": "phones"}}, "can't refer to another fleet"),
        ({"fleets": {}}, "did you mean 'fleet'"),
    ],
)
def test_fleets_that_make_no_sense(tmp_path, phones, change, told):
    assert told in _refused(tmp_path, phones | change, devices.read_fleet)


def test_a_key_that_is_written_twice_is_refused(tmp_path):
    text = (devices.library_folder() / "networks" / "lte.yaml").read_text(encoding="utf-8")
    path = tmp_path / "twice.yaml"
    path.write_text(text + text[text.index("jitter:") :], encoding="utf-8")
    with pytest.raises(
        DeviceError, match=r"twice\.yaml:\d+: jitter: the key 'jitter' is given twice \(first on line \d+\)"
    ):
        devices.read_link(path)


def test_words_and_numbers_are_those_of_a_scenario(tmp_path, phones):
    path = tmp_path / "mine.yaml"
    written = yaml.safe_dump({key: phones[key] for key in ("title", "confidence", "source")})
    path.write_text(written + "fleet: {availability: {markov: {on: 8:30, off: 1e-3}}}\n", encoding="utf-8")
    assert devices.read_fleet(path).fields["availability"] == {"markov": {"on": "8:30", "off": 0.001}}
