"""Figures derived from the device library: bands by kind, products that quotes state, and published twins."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product

import pytest

from edgefl import devices
from edgefl.devices import Device

NAMED = """raspberry-pi-zero-2w raspberry-pi-3b-plus raspberry-pi-4-2gb raspberry-pi-4-4gb raspberry-pi-4-8gb
    raspberry-pi-5-8gb jetson-nano-4gb jetson-tx2-8gb jetson-xavier-nx-8gb jetson-orin-nano-8gb jetson-orin-nx-16gb
    jetson-agx-orin-64gb orange-pi-5-8gb coral-dev-board-1gb n100-mini-pc i5-mini-pc macbook-air-m1 macbook-air-m2
    laptop-rtx-3050 laptop-rtx-3060 laptop-rtx-4070 desktop-rtx-3050 desktop-rtx-3060 desktop-rtx-4070 server-a5000
    server-h200 phone-entry phone-mid phone-flagship desktop-ryzen-5600x""".split()
"""The devices that the library promises."""


NAMED_AND_MODES = [*NAMED, *(f"{name}@{mode}" for name in NAMED for mode in devices.load_device(name).modes)]


def library() -> list[Device]:
    """All devices; plug-ins' aren't among them in a test run."""
    return [devices.load_device(name) for name in devices.device_names()]


def engine(device: Device) -> str:
    """What trains."""
    return {"cpu": "cores", "gpu": "graphics"}[device.processor.type]


def over_float32(device: Device, precision: str) -> float | None:
    """The peak in a precision over that in float32; None if the device has none of its own."""
    peak = getattr(device, f"peak_{precision}_flops_per_second")
    return None if peak is None else round(peak / device.peak_flops_per_second, 2)


DERIVED = {
    "peak FLOP per joule": lambda d: d.peak_flops_per_second / d.compute_watts,
    "bytes per FLOP": lambda d: d.memory_bytes_per_second / d.peak_flops_per_second,
    "usable over RAM": lambda d: d.usable_memory_bytes / d.ram_bytes,
    "overhead over usable": lambda d: d.runtime_overhead_bytes / d.usable_memory_bytes,
    "FLOPs lost in an operator": lambda d: d.seconds_per_operator * d.peak_flops_per_second,
    "idle over compute watts": lambda d: d.idle_watts / d.compute_watts,
    "seconds to fill the RAM from storage": lambda d: d.ram_bytes / d.storage_bytes_per_second,
    "storage over memory": lambda d: d.storage_bytes_per_second / d.memory_bytes_per_second,
    "tf32 over float32": lambda d: over_float32(d, "tf32"),
    "float16 over float32": lambda d: over_float32(d, "float16"),
    "bfloat16 over float32": lambda d: over_float32(d, "bfloat16"),
    "hours of battery": lambda d: d.battery_joules / d.compute_watts / 3600 if d.battery_joules else None,
    "share left when hot": lambda d: d.throttled_share,
    "seconds to a hot device": lambda d: d.throttle_after_seconds if d.throttle_after_seconds < 1e9 else None,
}

BY_ENGINE = {
    # The best board of the Linpack list has 4.9 double-precision GFLOP/J, so 9.8 in float32, at a half of its peak; a
    # desktop of which the cores are a part of the draw the least, 4 nm the most. Graphics: the memory-starved Maxwell
    # of 20 nm at the low end, 5 nm laptops above.
    "peak FLOP per joule": {"cores": (3e9, 65e9), "graphics": (20e9, 250e9)},
    # A product of two 64 x 64 matrices needs 0.1 bytes per FLOP, an elementwise operator 4 to 12. Cores are built for
    # 0.05 to 0.15; graphics for less, only old ones and HBM come near.
    "bytes per FLOP": {"cores": (0.045, 0.15), "graphics": (0.01, 0.09)},
    # An operator costs some ten thousand cycles of a core; a GPU's is launched by such a core while thousands wait.
    "FLOPs lost in an operator": {"cores": (1.2e6, 5e6), "graphics": (12e6, 400e6)},
    # Matrix units that add up in float32, over cores: those of GeForce cards have twice the float32 rate, of other
    # Ampere cards 4, of Orin and Volta boards 8, of Hopper 15; tf32 half as much.
    "tf32 over float32": {"graphics": (1, 7.5)},
    "float16 over float32": {"graphics": (2, 15)},
    "bfloat16 over float32": {"graphics": (2, 15)},
    # A storage as fast as a tenth of the memory would be no storage.
    "storage over memory": {"cores": (0.001, 0.1), "graphics": (0.001, 0.1)},
    "share left when hot": {"cores": (0.65, 1), "graphics": (0.75, 1)},
}
BY_KIND = {
    "peak FLOP per joule": {
        "microcomputer": (7e9, 20e9), "accelerator-board": (20e9, 100e9), "mini-pc": (5e9, 12e9),
        "laptop": (60e9, 250e9), "desktop": (3e9, 120e9), "phone": (25e9, 70e9), "server": (50e9, 110e9),
    },
    # What an idle system leaves: Android most for itself, a card nearly all; 512 MB boards a third for the system.
    "usable over RAM": {
        "microcomputer": (0.6, 0.95), "accelerator-board": (0.7, 0.95), "mini-pc": (0.8, 0.95),
        "laptop": (0.55, 0.96), "desktop": (0.85, 0.96), "phone": (0.25, 0.5), "server": (0.93, 0.995),
    },
    # Python with torch has to fit in what is left: on 512 MB it hardly does (only part of it can't be dropped).
    "overhead over usable": {
        "microcomputer": (0.03, 1.1), "accelerator-board": (0.01, 0.35), "mini-pc": (0.02, 0.1),
        "laptop": (0.05, 0.15), "desktop": (0.02, 0.1), "phone": (0.05, 0.25), "server": (0.003, 0.03),
    },
    # A board's regulators and network take half of what its four little cores add; a phone sleeps.
    "idle over compute watts": {
        "microcomputer": (0.2, 0.6), "accelerator-board": (0.1, 0.4), "mini-pc": (0.15, 0.4),
        "laptop": (0.08, 0.35), "desktop": (0.1, 0.35), "phone": (0.05, 0.15), "server": (0.15, 0.4),
    },
    # From a drive seconds, from a card minutes, and more where much memory meets an eMMC.
    "seconds to fill the RAM from storage": {
        "microcomputer": (5, 240), "accelerator-board": (8, 300), "mini-pc": (5, 40),
        "laptop": (1, 15), "desktop": (2, 15), "phone": (2, 30), "server": (5, 60),
    },
    # Phones run down in an afternoon of computing, gaming laptops in less than an hour, fanless ones in three.
    "hours of battery": {"laptop": (0.4, 4), "phone": (2, 8)},
    # Silicon and board of some grams take half a minute to minutes to heat; only what has no fan slows down.
    "seconds to a hot device": {"microcomputer": (20, 600), "laptop": (60, 1200), "phone": (60, 1800)},
}  # fmt: skip


def outliers(device: Device) -> list[str]:
    """Each derived figure of a device that lies outside of its band."""
    found = []
    for figure, derive in DERIVED.items():
        value = derive(device)
        for bands, of in ((BY_ENGINE, engine(device)), (BY_KIND, device.type)):
            if value is None or figure not in bands:
                continue
            if of not in bands[figure]:
                found.append(f"{device.name}: a {of} has no {figure}, yet {value:.3g}")
                continue
            low, high = bands[figure][of]
            if not low <= value <= high:
                found.append(f"{device.name}: {figure} {value:.3g} outside of {low:.3g}..{high:.3g} for {of}")
    return found


@pytest.mark.parametrize("name", devices.device_names())
def test_derived_figures_lie_in_their_bands(name):
    assert outliers(devices.load_device(name)) == []


@pytest.mark.parametrize("number", [
    "peak_flops_per_second", "peak_tf32_flops_per_second", "peak_float16_flops_per_second",
    "peak_bfloat16_flops_per_second", "memory_bytes_per_second", "storage_bytes_per_second", "seconds_per_operator",
    "compute_watts", "idle_watts", "usable_memory_bytes", "battery_joules",
])  # fmt: skip
def test_a_slip_of_a_prefix_is_an_outlier(number):
    for device, slip in product(library(), (1e-3, 1e3)):
        if (value := getattr(device, number)) is not None:
            assert outliers(replace(device, **{number: value * slip})), f"{device.name}: {number} x {slip:g}"


def test_most_errors_of_ten_are_outliers():
    # Not all: the bands of a kind are as wide as its devices differ.
    numbers = ["peak_flops_per_second", "memory_bytes_per_second", "seconds_per_operator", "compute_watts"]
    cases = list(product(library(), numbers, (0.1, 10)))
    seen = sum(bool(outliers(replace(d, **{n: getattr(d, n) * slip}))) for d, n, slip in cases)
    assert seen >= 0.9 * len(cases)


def test_the_library_is_large_and_holds_what_it_promises():
    assert len(devices.device_names()) >= 25
    assert set(NAMED) <= set(devices.device_names())
    assert {device.type for device in library()} == set(devices.DEVICE_TYPES)


def test_cards_and_drives_have_a_speed_and_phones_and_laptops_a_battery():
    for device in library():
        assert "storage_bytes_per_second" in device.facts, device.name
        assert (device.battery_joules is not None) == (device.type in {"phone", "laptop"}), device.name
        assert ("throttled_share" in device.facts) == ("throttle_after_seconds" in device.facts), device.name
        if device.type == "phone":
            assert device.throttled_share < 1, device.name


# ---- What quotes state must agree with what the profile holds

_PEAK = re.compile(
    r"(\d+)(?: (?:(?:tensor )?cores?|shaders))?(?: of the TPCs that the mask leaves)?"
    r" x (\d+(?:\.\d+)?) ([GM])Hz x (\d+)"
)
_BUS = re.compile(r"(?:(\d) x )?(\d+) MT/s x (\d+) bytes = (\d+(?:\.\d+)?) GB/s")
_SHARE_OF_BUS = re.compile(r"(\d+(?:\.\d+)?) ([GT])B/s[^;]*; (\d+) % of it")
_COPY = re.compile(r"memcpy (\d+(?:\.\d+)?) ([GM])B/s.*; a copy reads and writes each byte")
_CELL = re.compile(r"(\d+) mAh x (\d+\.\d+) V")


PEAKS = {f"peak_{precision}flops_per_second" for precision in ("", "tf32_", "float16_", "bfloat16_")}


def stated(device: Device) -> list[tuple[str, float, float]]:
    """(number, what its quote works out to, what the profile holds) wherever a quote states a product or a share."""
    quotes = {number: fact.source.quote for number, fact in device.facts.items()}
    found = []
    for number in PEAKS & set(quotes):
        if terms := _PEAK.findall(quotes[number]):
            worked = sum(float(n) * float(clock) * {"M": 1e6, "G": 1e9}[m] * float(flop) for n, clock, m, flop in terms)
            found.append((number, worked, getattr(device, number)))
    memory = quotes["memory_bytes_per_second"]
    for channels, transfers, width, bus in _BUS.findall(memory):
        found.append(("memory bus", float(channels or 1) * float(transfers) * 1e6 * float(width), float(bus) * 1e9))
    if share := _SHARE_OF_BUS.search(memory):
        bus_rate = float(share[1]) * {"G": 1e9, "T": 1e12}[share[2]]
        found.append(("memory_bytes_per_second", bus_rate * float(share[3]) / 100, device.memory_bytes_per_second))
    if (copy := _COPY.search(memory)) and device.facts["memory_bytes_per_second"].confidence == "measured":
        copied = 2 * float(copy[1]) * {"M": 1e6, "G": 1e9}[copy[2]]
        found.append(("memory_bytes_per_second", copied, device.memory_bytes_per_second))
    if device.battery_joules and (cell := _CELL.search(quotes["battery_joules"])):
        found.append(("battery_joules", float(cell[1]) / 1000 * float(cell[2]) * 3600, device.battery_joules))
    return found


def wrong(device: Device) -> list[str]:
    """Stated products and shares that are more than 4 % off: quotes round to two digits."""
    return [
        f"{device.name}: {number} is {held:.4g} where its quote works out to {worked:.4g}"
        for number, worked, held in stated(device)
        if abs(held / worked - 1) > 0.04
    ]


@pytest.mark.parametrize("name", NAMED_AND_MODES)
def test_products_in_quotes_work_out(name):
    assert wrong(devices.load_device(name)) == []


def test_nearly_all_peaks_are_worked_out_and_a_wrong_one_is_found():
    every = list(map(devices.load_device, NAMED_AND_MODES))
    peaks = [(device, number) for device in every for number in PEAKS & set(device.facts)]
    worked = [(device, number) for device in every for number, _, _ in stated(device) if number in PEAKS]
    assert len(worked) >= len(peaks) - 1  # Apple states the M1's without its clock
    assert sum(len(stated(d)) for d in library()) > 2.5 * len(library())
    for device, number in worked:
        assert wrong(replace(device, **{number: 1.1 * getattr(device, number)})), f"{device.name}: {number}"


def test_matrix_units_take_both_halves_at_one_rate_and_tf32_at_half_of_it():
    for device in map(devices.load_device, NAMED_AND_MODES):
        tf32, half, brain = (getattr(device, f"peak_{p}_flops_per_second") for p in ("tf32", "float16", "bfloat16"))
        assert (tf32 is None) == (brain is None), device.name
        if tf32 is not None:
            assert half == pytest.approx(2 * tf32, rel=0.01) and half == pytest.approx(brain, rel=0.01), device.name
    alone = {d.name for d in library() if d.peak_float16_flops_per_second and not d.peak_bfloat16_flops_per_second}
    assert alone == {"jetson-xavier-nx-8gb"}  # Volta


# ---- Twins

LINPACK_WATTS = {
    "raspberry-pi-zero-2w": 2.1, "raspberry-pi-4-2gb": 7.2, "raspberry-pi-4-4gb": 7.2, "raspberry-pi-4-8gb": 7.2,
    "raspberry-pi-5-8gb": 11, "orange-pi-5-8gb": 11.5, "n100-mini-pc": 25, "i5-mini-pc": 41,
    "desktop-ryzen-5600x": 196,
}  # fmt: skip
"""Column Wattage of the results in geerlingguy/top500-benchmark, README, as read on 2026-11-21."""

PUBLISHED_PEAKS = [
    ("macbook-air-m1", "", 2.62), ("macbook-air-m2", "", 3.58),  # 10-core M2 and 8-core M1 GPU compared, HMC
    ("desktop-rtx-3050", "", 9.1),  # GeForce RTX 3050 and RTX 2060 12GB compared, HMC
    ("desktop-rtx-3050", "float16_", 291.14 / 16),  # there: sparse TOPS INT4 tensor, 8 and 2 times those dense in FP16
    ("desktop-rtx-3060", "", 12.74),  # GeForce RTX 3060 and RTX A6000 compared, sysrqmts.com
    ("desktop-rtx-4070", "", 29.1),  # complete specifications, Club386
    ("desktop-rtx-4070", "float16_", 165.2 * 29.15 / 82.58),  # RTX 4090 in the Ada whitepaper, FP32 accumulate
    ("desktop-rtx-4070", "tf32_", 82.6 * 29.15 / 82.58),
    ("laptop-rtx-3050", "", 7.13 * 1500 / 1740),  # RTX 4050 Laptop 30W and RTX 3050 Laptop 80W compared, HMC
    ("laptop-rtx-3050", "float16_", 14.25 * 1500 / 1740), ("laptop-rtx-3050", "tf32_", 7.13 * 1500 / 1740),
    ("laptop-rtx-3060", "", 11.75 * 1425 / 1530),  # RTX 4070 Max-Q and RTX 3060 Laptop 90W compared, HMC
    ("laptop-rtx-3060", "float16_", 23.5 * 1425 / 1530), ("laptop-rtx-3060", "bfloat16_", 23.5 * 1425 / 1530),
    ("laptop-rtx-4070", "", 11.34 * 2175 / 1230), ("laptop-rtx-4070", "float16_", 22.67 * 2175 / 1230),
    ("server-a5000", "", 27.8), ("server-a5000", "float16_", 222.2 / 2),  # NVIDIA's data sheet; tensor, sparse
    ("server-a5000", "bfloat16_", 154.8 * 8192 * 1695 / (10752 * 1800)),  # RTX A6000 in the GA102 whitepaper
    ("server-a5000", "tf32_", 77.4 * 8192 * 1695 / (10752 * 1800)),
    ("server-h200", "", 67), ("server-h200", "tf32_", 989 / 2), ("server-h200", "float16_", 1979 / 2),
    ("server-h200", "bfloat16_", 1979 / 2),  # NVIDIA's data sheet, with sparsity
    ("jetson-agx-orin-64gb", "", 5.3), ("jetson-agx-orin-64gb", "float16_", 170 / 4),  # technical brief, sparse INT8
    ("jetson-orin-nx-16gb", "", 1.88), ("jetson-orin-nx-16gb", "float16_", 60 / 4),  # 100 TOPS less 40 of its DLA
    ("jetson-orin-nano-8gb", "", 1.28),
    ("jetson-xavier-nx-8gb", "", 0.8448),  # TechPowerUp
    ("jetson-xavier-nx-8gb", "float16_", 125 * 48 * 1100 / (640 * 1530)),  # V100: 640 tensor cores at 1530 MHz
    ("jetson-tx2-8gb", "", 0.6656 * 1.12 / 1.3),  # TechPowerUp, at the clock of Max-N
    ("jetson-nano-4gb", "", 0.472 / 2),  # NVIDIA's 472 GFLOPS are float16
    ("jetson-orin-nano-8gb@25W", "float16_", 67 / 4 * 918 / 1020),  # the Super's 67 TOPS, sparse INT8, at 1020 MHz
    ("jetson-agx-orin-64gb@30W", "float16_", 170 / 4 * 1024 / 2048 * 612 / 1300),
    ("jetson-orin-nx-16gb@10W", "float16_", 15 / 2 * 612 / 918),
]  # fmt: skip
"""TFLOP/s dense as tables print them, most of them not the profile's own source, at the profile's clock.

Whitepapers and data sheets of NVIDIA by memory.
"""

REACHED = {
    "desktop-rtx-3060": (12.44, 24.80, 25.47), "laptop-rtx-3060": (11.04, 22.03, 21.73),
    "jetson-orin-nano-8gb": (4.92, 10.18, 10.91), "server-h200": (None, 759.40, 790.29),
}  # fmt: skip
"""TFLOP/s of large products in tf32, float16 and bfloat16 with PyTorch, zzc0721/torch-performance-test-data."""


def stray_twin(device: Device) -> bool:
    """Whether the profile names a twin that none of its numbers comes from."""
    return device.twin is not None and device.twin not in {fact.source.title for fact in device.facts.values()}


def test_a_twin_is_a_source_of_the_profile():
    for device in library():
        assert device.twin, device.name
        assert not stray_twin(device), f"{device.name}: {device.twin!r} is no source of any of its numbers"
        assert stray_twin(replace(device, twin="a list that isn't quoted"))


def test_numbers_equal_their_published_twins():
    for name, watts in LINPACK_WATTS.items():
        assert devices.load_device(name).compute_watts == watts, name
    for name, precision, peak in PUBLISHED_PEAKS:
        held = getattr(devices.load_device(name), f"peak_{precision}flops_per_second")
        assert held == pytest.approx(peak * 1e12, rel=0.02), (name, precision)


def test_pytorch_comes_near_the_peaks_of_matrix_units():
    # Were the peaks those of sums in float16, twice as high on GeForce cards, or sparse, it would reach half of them.
    for name, reached in REACHED.items():
        for precision, tflops in zip(("tf32", "float16", "bfloat16"), reached, strict=True):
            peak = getattr(devices.load_device(name), f"peak_{precision}_flops_per_second")
            assert tflops is None or 0.75 * peak < tflops * 1e12 < 1.08 * peak, (name, precision)


def test_linpack_does_not_beat_the_peak():
    # Double precision has half the lanes: twice the published rate is below the float32 peak.
    published = {"raspberry-pi-4-4gb": 11.889, "raspberry-pi-5-8gb": 30.249, "orange-pi-5-8gb": 53.333,
                 "n100-mini-pc": 62.851, "i5-mini-pc": 72.472, "desktop-ryzen-5600x": 229}  # fmt: skip
    for name, gflops in published.items():
        assert 2e9 * gflops < devices.load_device(name).peak_flops_per_second, name


# ---- Honesty of ranges and sources

WIDE = {"seconds_per_operator": 2.0, "memory_bytes_per_second": 1.2, "throttle_after_seconds": 2.0, "jitter": 2.0,
        "idle_watts": 1.3, "storage_bytes_per_second": 1.2}  # fmt: skip
"""The least width (highest over lowest) of a range of a number that is only estimated."""


def test_estimates_have_wide_ranges():
    for device in library():
        for number, fact in device.facts.items():
            if fact.confidence == "estimated" and number in WIDE:
                assert fact.high >= WIDE[number] * fact.low, f"{device.name}: {number} {fact.low:g}..{fact.high:g}"


def read_shares() -> dict[str, Counter[str]]:
    """Of each number: how many profiles have it from a source that was read, from one that wasn't, or estimate it."""
    shares: dict[str, Counter[str]] = defaultdict(Counter)
    for device in library():
        for number, fact in device.facts.items():
            if fact.confidence == "fitted":
                continue
            own = fact.source.title == "Own estimate"
            shares[number]["own estimate" if own else "read" if fact.source.read else "not read"] += 1
    return shares


def test_few_sources_were_not_read(record_property):
    shares = read_shares()
    print(f"{'number':28}{'read':>8}{'not read':>10}{'own estimate':>14}")
    for number, counts in sorted(shares.items()):
        record_property(f"not read: {number}", counts["not read"] / counts.total())
        print(f"{number:28}{counts['read']:8}{counts['not read']:10}{counts['own estimate']:14}")
    for number, counts in shares.items():
        assert counts["not read"] <= 0.2 * counts.total(), f"{number}: {counts}"
    everything = sum(shares.values(), Counter())
    assert everything["not read"] <= 0.05 * everything.total()
    assert everything["read"] >= 0.4 * everything.total()
