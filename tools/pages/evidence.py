"""The tables of the pages of evidence: how far off memory, seconds and other figures are, from what tools recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgefl import units
from edgefl.devices import device_names, load_device
from edgefl.devices.processors import SecondsInterval, classes, load_fitted_rates
from edgefl.devices.profile import Device, hardware
from edgefl.devices.runtime import PYTORCH, load_runtime, runtime_names
from edgefl.records.reading import from_data
from tools.pages.markdown import table
from tools.pages.measured import recorded
from tools.published_steps.agreement import agreement
from tools.published_steps.answer import Estimate, Unseen
from tools.published_steps.measurements import Measurement, measurements
from tools.published_steps.predicting import foretold, key_of, source_of

UNSEEN = {
    "model": "these models on the device",
    "device": "the device",
    "source": "the source",
    "class": "the class of its processor",
    "nothing": "nothing (as shipped)",
}
"""How the page names the questions of ``tools/published.py``."""


def memory_blocks() -> dict[str, str]:
    """Those of the page about memory."""
    return {"runtimes": _runtimes([load_device(name) for name in device_names()])}


def seconds_blocks() -> dict[str, str]:
    """Those of the page about seconds and joules."""
    devices = [load_device(name) for name in device_names()]
    return {
        "unseen": _unseen(), "intervals": _intervals(), "classes": _seconds(devices), "calibrated": _calibrated(),
    }  # fmt: skip


def joules_blocks() -> dict[str, str]:
    """Those of the page about joules: how far off they are by device, and the rows by device and network."""
    known = recorded("joules")
    of_device = [
        (
            "all" if name is None else f"`{name}`",
            "" if name is None else hardware(name).title,
            str(each["rows"]),
            _percent(from_data(Estimate, each["median_error"], "joules.json")),
            *(f"x{each[factor]:.2f}" for factor in ("mean_factor", "share_factor", "worst_factor")),
            "" if name is None else f"x{each['watts_factor']:.2f}",
        )
        for each in (*known["joules_by_device"], known["joules"])
        for name in (each.get("name"),)
    ]
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in known["rows"]:
        rows.setdefault((each["device"], f"{each['model']}, {each['precision']}"), []).append(each)
    of_network = [
        (
            f"`{device}`",
            network,
            _span(sorted(row["batch"] for row in of), "{}"),
            str(len(of)),
            _span(sorted(row["measured"] for row in of), "{:.3g}"),
            _span(sorted(row["predicted"] / row["measured"] for row in of), "{:.2f}"),
        )
        for (device, network), of in rows.items()
    ]
    numbers = ("Rows", "Median error", "Mean factor", "80 % within", "Worst", "Watts alone")
    return {
        "joules": table(("Device", "What the meter saw", *numbers), of_device),
        "rows": table(("Device", "Network", "Batch", "Rows", "Joules of a step", "Predicted / measured"), of_network),
    }


def _span(values: Sequence[float], form: str) -> str:
    """The least and the largest of sorted values."""
    return " to ".join(dict.fromkeys(form.format(each) for each in (values[0], values[-1])))


def gpu_blocks() -> dict[str, str]:
    """That of the page about the GPU: the models that were measured there."""
    rows = [
        (
            model["model"],
            f"{model['allocated_mib']:,.1f} MiB",
            _signed(model["memory_error_with_gpu"], 2),
            _signed(model["memory_error_without"], 1),
            f"{model['step_ms']} ms",
            _signed(model["seconds_error"], 0),
        )
        for model in recorded("gpu")["models"]
    ]
    head = ("Model", "Allocated", "Predicted with the GPU", "Predicted without", "A step", "Predicted step")
    return {"models": table(head, rows)}


def second_runtime_blocks() -> dict[str, str]:
    """Those of the page about ExecuTorch: bytes of both, and what is refused."""
    kept = recorded("second-runtime")["rows"]
    rows = [
        (
            each["model"],
            f"{each['arena_bytes']:,}",
            f"{each['peak_memory_bytes']:,}",
            f"{each['arena_bytes'] / each['peak_memory_bytes']:.4g}",
            f"{_beside(each, 'arena_bytes') / _beside(each, 'peak_memory_bytes'):.4g}",
            f"{each['gradient_difference']:.0e}",
            f"{each['seconds'] / each['torch_seconds']:.0f}",
        )
        for each in kept
        if "refused" not in each
    ]
    head = ("Model", "Arena, B", "Predicted, B", "Ratio", "Less parameters", "Gradients off by", "Seconds over torch's")
    refused = [(each["model"], each["refused"]) for each in kept if "refused" in each]
    return {"models": table(head, rows), "refused": table(("Refused", "Because"), refused)}


def _beside(row: Mapping[str, Any], name: str) -> int:
    """These bytes less those of the parameters."""
    return int(row[name] - row["parameter_bytes"])


def _signed(error: float | None, digits: int) -> str:
    return "–" if error is None else f"{error:+.{digits}f} %"


def emulation_blocks() -> dict[str, str]:
    """That of the page about emulation: errors of each phase by group of client-rounds."""
    phases = ("download", "compute", "upload", "round", "round_with_measured_compute")
    rows = [
        (each["group"], str(each["client_rounds"]), *(", ".join(f"{e:.2g} %" for e in each[phase]) for phase in phases))
        for each in recorded("emulation")["groups"]
    ]
    head = ("", "Client-rounds", "Download", "Compute", "Upload", "Round", "Round with measured compute")
    return {"seconds": table(head, rows)}


def other_program_blocks() -> dict[str, str]:
    """That of the page about other programs: the largest difference of each pair."""
    rows = [(e["method"], e["compared_with"], e["difference"]) for e in recorded("other-programs")["pairs"]]
    return {"differences": table(("Method", "Compared with", "Largest difference"), rows, ("---", "---", "---:"))}


def _calibrated() -> str:
    """Predicted over measured seconds of whole networks on a calibrated core."""
    rows = [
        (each["network"], str(each["measured_ms"]), f"{each['predicted']:.2f}", f"{each['roofline']:.2f}")
        for each in recorded("calibrated")["networks"]
    ]
    return table(("Network", "Measured, ms", "Predicted / measured", "Roofline / measured"), rows)


def _unseen() -> str:
    """How far off seconds are by what the fit that predicts them lacks."""
    known = recorded("seconds")
    asked = {each["unseen"]: each for each in known["questions"]} | {"nothing": known["shipped"]}
    rows = []
    for name, title in UNSEEN.items():
        of = asked[name]
        tau = of["tau"]
        rows.append(
            (
                title,
                str(of["rows"]),
                str(of["devices"]),
                _percent(from_data(Estimate, of["median_error"], "seconds.json")),
                _percent(from_data(Estimate, of["within_factor"], "seconds.json")),
                f"{of['worst_factor']:.1f}x",
                f"{tau['value']:.2f} [{tau['low']:.2f}..{tau['high']:.2f}]",
            )
        )
    return table(("The fit lacks", "Rows", "Devices", "Median error", "Within 1.5x", "Worst", "Tau"), rows)


def _intervals() -> str:
    """The intervals of seconds by type of processor and loading, for sources that were seen and others."""
    loading = {None: "", False: ", without loading", True: ", with loading"}
    factors: dict[str, dict[bool, SecondsInterval]] = {}
    for each in load_fitted_rates().intervals:
        factors.setdefault(f"{each.of.upper()}{loading[each.loading]}", {})[each.seen] = each
    rows = [
        (name, *(f"x{of[seen].factor:.2f}" for seen in (True, False)), str(of[False].rows), str(of[False].pairs))
        for name, of in factors.items()
    ]
    return table(("Processor", "Source seen", "Source unseen", "Rows", "Pairs of device and source"), rows)


def _runtimes(devices: Iterable[Device]) -> str:
    """What a process takes in addition to its tensors, by runtime and type of device."""
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
        told = [*_off(held, "device"), *_off(held, "class")[:1]] if held else ["no measurements", "", "", ""]
        rows.append((f"`{name}`", str(of), str(len(held)), str(len({row.device for row in held})), *told))
    every = [*_off(timed, "device"), *_off(timed, "class")[:1]]
    rows.append(("all", str(len(devices)), str(len(timed)), str(len({row.device for row in timed})), *every))
    head = (
        "Class",
        "Devices shipped",
        "Rows",
        "Devices of rows",
        "Median error",
        "Within 1.5x",
        "Worst",
        "Class unseen",
    )
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
