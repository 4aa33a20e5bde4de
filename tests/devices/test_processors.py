"""Which fitted efficiencies a device has: its own, its class's or its kind's, of the runtime that trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgefl.devices import load_device, with_runtime
from edgefl.devices.browsing import seconds_within
from edgefl.devices.processors import classes, efficiency_of, load_fitted_rates, same_runtime
from edgefl.devices.profile import in_runtime
from edgefl.errors import UnknownName


@pytest.mark.parametrize(
    ("processor", "device", "runtime", "of", "found"),
    [
        ("cortex-a72", "raspberry-pi-4-8gb", "pytorch", "raspberry-pi-4-8gb", "pytorch 1.13"),
        ("cortex-a72", "raspberry-pi-4-4gb", "pytorch", "cortex-a72", "pytorch 1.13"),
        ("cortex-a53", "raspberry-pi-zero-2w", "pytorch", "cpu", None),
        ("discrete-gpu", "server-h200", "pytorch", "server-h200", "pytorch 2.13"),
        ("apple-gpu", "macbook-air-m1", "pytorch 1.12", "macbook-air-m1", "pytorch 1.12"),
        ("apple-gpu", "macbook-air-m1", "pytorch", "macbook-air-m1", "pytorch"),
        # no row of the card with PyTorch, though some of its class
        ("discrete-gpu", "desktop-rtx-3060", "pytorch", "discrete-gpu", "pytorch"),
        ("discrete-gpu", "desktop-rtx-3060", "tensorflow compiled", "desktop-rtx-3060", "tensorflow compiled"),
        ("cortex-a72", "raspberry-pi-4-8gb", "executorch", "cortex-a72", None),
    ],
)
def test_the_nearest_that_was_fitted(processor: str, device: str, runtime: str, of: str, found: str | None) -> None:
    entry = efficiency_of(processor, device, runtime)
    assert (entry.of, entry.runtime) == (of, found)


def test_an_unknown_class_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"did you mean 'jetson'\? known are .* jetson \(2015, "):
        efficiency_of("jetsons")


def test_runtimes_are_the_same_whatever_their_version_but_not_compiled() -> None:
    assert same_runtime("pytorch 1.13", "pytorch 2.7") and same_runtime("pytorch", "pytorch 2.7")
    assert not same_runtime("pytorch compiled", "pytorch") and not same_runtime(None, "pytorch")


def test_rates_are_shares_of_the_peaks_in_the_runtime() -> None:
    device = load_device("macbook-air-m1")
    early = in_runtime(device, "pytorch 1.12")
    for machine, runtime in ((device, "pytorch"), (early, "pytorch 1.12")):
        known = efficiency_of("apple-gpu", "macbook-air-m1", runtime).efficiency
        assert machine.flops_per_second == pytest.approx(known.arithmetic["product"] * device.peak_flops_per_second)
        assert machine.processor.memory[7] == known.memory["pointwise"]
        assert machine.facts["flops_per_second"].confidence == "fitted"
    assert early.processor != device.processor
    assert in_runtime(early, "pytorch") == device


def test_a_fleets_runtime_has_its_own_efficiencies_if_rows_say_them(tmp_path: Path) -> None:
    text = """title: "A runtime with rows"
overhead_bytes: {value: 20 MB, range: 10..30 MB, confidence: estimated, source: {title: t, date: 2026-11-22, quote: q1}}
"""
    for name in ("tensorflow", "unheard-of"):
        (tmp_path / f"{name}.yaml").write_text(text)
    nano = load_device("jetson-nano-4gb")
    known = efficiency_of("jetson", "jetson-nano-4gb", "tensorflow")
    assert known.runtime == "tensorflow"
    trained = with_runtime(nano, str(tmp_path / "tensorflow.yaml"))
    share = known.efficiency.arithmetic["product"]
    assert trained.flops_per_second == pytest.approx(share * nano.peak_flops_per_second) != nano.flops_per_second
    other = with_runtime(nano, str(tmp_path / "unheard-of.yaml"))
    assert (other.flops_per_second, other.processor) == (nano.flops_per_second, nano.processor)


def test_a_device_with_rows_has_the_interval_of_sources_that_were_seen() -> None:
    known = {(each.of, each.loading, each.seen): each.factor for each in load_fitted_rates().intervals}
    assert len(known) == 6
    # a CPU's rows have loading or not, and a GPU is asked without it
    seen = {"raspberry-pi-4-8gb": ("cpu", None), "server-h200": ("gpu", False), "macbook-air-m1": ("gpu", False)}
    unseen = {"raspberry-pi-4-2gb": ("cpu", None), "phone-mid": ("cpu", None), "jetson-tx2-8gb": ("gpu", False)}
    expected = {name: known[*of, True] for name, of in seen.items()}
    expected |= {name: known[*of, False] for name, of in unseen.items()}
    assert seconds_within(expected) == expected
    for of, loading in (("cpu", None), ("gpu", False), ("gpu", True)):
        assert 1 < known[of, loading, True] < known[of, loading, False]
    fact = load_device("server-h200").facts["flops_per_second"]
    assert (fact.value / fact.low, fact.high / fact.value) == pytest.approx((known["gpu", False, True],) * 2)
    assert f"x{known['gpu', False, True]:.2g} either way (80 %)" in fact.source.quote


def test_every_class_that_was_fitted_is_one_of_the_library() -> None:
    for entry in load_fitted_rates().entries:
        if entry.devices > 1 and entry.of not in ("cpu", "gpu"):
            assert entry.of in classes()
