"""The tables of limits.md: what the library's numbers rest on, and how far off its seconds are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from edgefl import units
from edgefl.devices import device_names, link_names, load_device, load_link
from edgefl.devices.measurements import Measurement, measurements
from edgefl.devices.processors import classes
from edgefl.devices.profile import Device, hardware
from edgefl.devices.runtime import PYTORCH, load_runtime, runtime_names
from edgefl.devices.written_facts import Fact
from tools.pages.devices import CONFIDENCES, OWN, new_in_modes
from tools.pages.markdown import table
from tools.published_steps.agreement import agreement
from tools.published_steps.answer import Estimate, Unseen
from tools.published_steps.predicting import foretold, key_of, source_of


def limit_blocks() -> dict[str, str]:
    """Each block of the page by its name."""
    devices = [load_device(name) for name in device_names()]
    return {
        "runtimes": _runtimes(devices),
        "seconds": _seconds(devices),
        "meters": _meters(devices),
        "confidence": _confidence(devices),
        "confidence by number": _by_number(devices),
    }


def _runtimes(devices: Iterable[Device]) -> str:
    """What a process takes beside its tensors, by runtime and type of device."""
    types: dict[tuple[float, float, float, str], Counter[str]] = {}
    for device in devices:
        fact = device.facts["runtime_overhead_bytes"]
        types.setdefault((fact.value, fact.low, fact.high, fact.confidence), Counter())[device.type] += 1
    rows = [
        ("Python with torch", ", ".join(f"{type} ({count})" for type, count in sorted(of.items())), *_range(*told))
        for told, of in sorted(types.items())
    ]
    for name in runtime_names():
        if name != PYTORCH:
            runtime = load_runtime(name)
            fact = runtime.fact
            rows.append((runtime.title, "all", *_range(fact.value, fact.low, fact.high, fact.confidence)))
    return table(("Runtime", "On", "Takes", "Range", "Confidence"), rows)


def _range(value: float, low: float, high: float, confidence: str) -> tuple[str, str, str]:
    return units.show_bytes(value), f"{units.show_bytes(low)} to {units.show_bytes(high)}", confidence


def _seconds(devices: Sequence[Device]) -> str:
    """How far off seconds of a step are by class of processor, by fits that lack the device or the class."""
    timed = [row for row in measurements() if row.seconds_per_step is not None and key_of(row) in foretold()]
    rows = []
    for name in classes():
        held = [row for row in timed if hardware(row.device).processor_class == name]
        of = sum(device.processor_class == name for device in devices)
        told = [*_off(held, "device"), *_off(held, "class")[:1]] if held else ["never measured", "", "", ""]
        rows.append((f"`{name}`", str(of), str(len(held)), str(len({row.device for row in held})), *told))
    every = [*_off(timed, "device"), *_off(timed, "class")[:1]]
    rows.append(("all", str(len(devices)), str(len(timed)), str(len({row.device for row in timed})), *every))
    head = ("Class", "Devices here", "Rows", "Devices of rows", "Median error", "Within 1.5x", "Worst", "Class unseen")
    return table(head, rows)


def _off(rows: Sequence[Measurement], unseen: Unseen) -> list[str]:
    """The median error, the share within a factor of 1.5, and the worst factor, by fits without something."""
    measured = [row.seconds_per_step or 0.0 for row in rows]
    predicted = [float(getattr(foretold()[key_of(row)], f"unseen_{unseen}")) for row in rows]
    clusters = [(row.device, source_of(row)) for row in rows]
    found = agreement(measured, predicted, clusters, len({row.device for row in rows}))
    return [_percent(found.median_error), _percent(found.within_factor), f"{found.worst_factor:.1f}x"]


def _percent(of: Estimate) -> str:
    interval = "" if of.low is None or of.high is None else f" [{of.low:.0%}..{of.high:.0%}]".replace("%..", "..")
    return f"{of.value:.0%}".replace("%", " %") + interval.replace("%", "")


def _meters(devices: Sequence[Device]) -> str:
    """What was held against a meter of watts or joules."""
    rows = Counter(row.device for row in measurements() if row.watts or row.measured in ("power", "energy"))
    ours = {device.name for device in devices}
    told = [
        (f"`{name}`", hardware(name).title, str(count), "yes" if name in ours else "")
        for name, count in rows.most_common()
    ]
    return table(("Device", "What the meter saw", "Figures", "In the library"), told)


def _confidence(devices: Sequence[Device]) -> str:
    """How many numbers of the library are measured, from a data sheet, fitted, and estimated; without any source."""
    facts = {
        f"{len(devices)} devices": [fact for device in devices for fact in device.facts.values()],
        "their power modes": [fact for device in devices for _, _, fact in new_in_modes(device)],
        f"{len(link_names())} links": [fact for name in link_names() for fact in load_link(name).facts.values()],
        "runtimes": [load_runtime(name).fact for name in runtime_names() if name != PYTORCH],
    }
    facts["all"] = [fact for of in facts.values() for fact in of]
    rows = [
        (name, *_counted(of), str(len(of)), str(sum(f.source.title == OWN for f in of))) for name, of in facts.items()
    ]
    return table(("Numbers of", *map(str.capitalize, CONFIDENCES), "All", "With nobody else's source"), rows)


def _by_number(devices: Sequence[Device]) -> str:
    """The same for each number of a device and of a link."""
    rows = []
    for what, profiles in (
        ("device", [each.facts for each in devices]),
        ("link", [load_link(n).facts for n in link_names()]),
    ):
        for name in dict.fromkeys(name for facts in profiles for name in facts):
            rows.append((what, f"`{name}`", *_counted([facts[name] for facts in profiles if name in facts])))
    return table(("Of a", "Number", *map(str.capitalize, CONFIDENCES)), rows)


def _counted(facts: Sequence[Fact]) -> list[str]:
    return [str(sum(fact.confidence == each for fact in facts) or "–") for each in CONFIDENCES]
