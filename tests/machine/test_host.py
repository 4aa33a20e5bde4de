"""What a machine says about itself: sensors and names in files of the form that Linux gives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from time import perf_counter, sleep

import pytest

from edgefl.devices import DEVICE_TYPES
from edgefl.machine import host


def put(root: Path, **files: object) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return root


def watts(sensor: host.Sensor | None) -> float:
    assert sensor is not None and sensor.watts is not None
    told, read = sensor.watts, Event()

    def watched() -> float:
        value = told()
        read.set()
        return value

    with replace(sensor, watts=watched).measuring() as found:
        assert read.wait(300)
    assert found.value is not None
    return found.value


def test_a_battery_counts_only_while_it_is_used(tmp_path: Path) -> None:
    battery = "class__power_supply__BAT0__"
    put(tmp_path, **{f"{battery}status": "Charging", f"{battery}power_now": 7_500_000})
    assert host.power_sensor(tmp_path) is None
    put(tmp_path, **{f"{battery}status": "Discharging"})
    assert watts(host.power_sensor(tmp_path)) == 7.5
    (tmp_path / "class/power_supply/BAT0/power_now").unlink()
    put(tmp_path, **{f"{battery}current_now": 500_000, f"{battery}voltage_now": 12_000_000})
    assert watts(host.power_sensor(tmp_path)) == 6.0


def test_a_board_is_measured_at_its_input(tmp_path: Path) -> None:
    monitor = tmp_path / "class/hwmon/hwmon1"
    put(monitor, name="ina3221", in1_label="VDD_CPU", in1_input=5000, curr1_input=100, in2_label="VDD_IN",
        in2_input=5000, curr2_input=1300)  # fmt: skip
    assert watts(host.power_sensor(tmp_path)) == 6.5
    put(monitor, name="power_meter", power1_average=42_000_000)
    assert watts(host.power_sensor(tmp_path)) == 42.0


def test_counters_of_packages_are_added_and_may_start_again(tmp_path: Path) -> None:
    for zone, energy in (("intel-rapl:0", 900), ("intel-rapl:1", 100), ("intel-rapl:0:0", 5)):
        put(tmp_path / "class/powercap" / zone, energy_uj=energy * 10**6, max_energy_range_uj=1000 * 10**6)
    sensor = host.power_sensor(tmp_path)
    assert sensor is not None and "package alone" in sensor.what
    assert sensor.joules is not None and sensor.joules() == [900.0, 100.0]  # a core's own zone is in its package's
    began = perf_counter()
    with sensor.measuring() as found:
        put(tmp_path / "class/powercap/intel-rapl:0", energy_uj=100 * 10**6)  # 200 J past the wrap
        put(tmp_path / "class/powercap/intel-rapl:1", energy_uj=150 * 10**6)
        sleep(0.1)
    assert found.value is not None and 250 / (perf_counter() - began) < found.value < 250 / 0.1


def test_a_machine_is_called_by_its_board_or_its_processor(tmp_path: Path) -> None:
    put(tmp_path, cpuinfo="processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert host.model_name(tmp_path) == "Some CPU @ 2 GHz"
    put(tmp_path, **{"device-tree__model": "Raspberry Pi 4 Model B Rev 1.4\0"})
    assert host.model_name(tmp_path) == "Raspberry Pi 4 Model B Rev 1.4"
    assert host.device_type_here(tmp_path, tmp_path) == "microcomputer"
    put(tmp_path, **{"device-tree__model": "NVIDIA Jetson Orin Nano Developer Kit\0"})
    assert host.device_type_here(tmp_path, tmp_path) == "accelerator-board"
    for chassis, kind in ((10, "laptop"), (3, "desktop"), (35, "mini-pc"), (1, "server")):
        other = put(tmp_path / "other", class__dmi__id__chassis_type=chassis)
        assert host.device_type_here(other, other) == kind and kind in DEVICE_TYPES


def test_memory_and_cores_are_possible() -> None:
    assert 1 <= host.physical_cores() <= 4096
    alone, resident = host.overhead_bytes()
    assert 0 < alone <= resident < host.usable_bytes() <= host.ram_bytes()
    assert 0 < host.free_bytes() < host.usable_bytes()


def test_a_file_is_read_and_leaves_nothing(tmp_path: Path) -> None:
    seen = host.read_storage(tmp_path, 3 * host.BLOCK + 17, 2)
    assert seen.bytes == 3 * host.BLOCK and len(seen.rates) == 2 and min(seen.rates) > 1e5
    assert list(tmp_path.iterdir()) == []


def test_the_company_of_an_idle_block_has_a_share() -> None:
    with host.company() as company:
        sleep(0.05)
    assert 0 <= company.others <= 1.5
    with pytest.raises(ZeroDivisionError), host.company():
        raise ZeroDivisionError
