"""A profile that is another one but for some numbers, which keep the uncertainty that the other has."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from edgefl import units, yaml_lines
from edgefl.devices import DEVICE_TYPES, is_file_name, link_names
from edgefl.devices.profile import (
    DEVICE_NUMBERS,
    LINK_NUMBERS,
    MODES,
    Device,
    Link,
    described_device,
    described_link,
    library_files,
    load_device,
    load_link,
    split_mode,
)
from edgefl.devices.written_facts import ProfileFile, profile_keys, read_written
from edgefl.drawing.text_tables import number_formatter
from edgefl.errors import DeviceError, UnitError, UnknownName, printable

TEXTS = ("title", "type", "processor")
"""Fields of a profile that are no numbers."""
SCALED = {
    "ram_bytes": ("usable_memory_bytes",),
    "peak_flops_per_second": (
        "flops_per_second", "peak_tf32_flops_per_second", "peak_float16_flops_per_second",
        "peak_bfloat16_flops_per_second", "float16_flops_per_second", "bfloat16_flops_per_second",
    ),
}  # fmt: skip
"""Numbers that grow with another one if that is set and they aren't."""
OF_TRACE = {"trace": "file", "period": "period"}
"""Names under which the fields of a link's trace are set."""


def derived_profile(path: Path, like: str, changes: Sequence[str]) -> tuple[str, str, list[str], list[str]]:
    """``device`` or ``link``, the YAML text of the profile at ``path``, the fields that were set, and those of SCALED.

    ``changes`` are ``"ram_bytes=8 GiB"``.  A number's range is as wide as the other profile's in relation to its value.
    In the text a comment before each field says whether it is copied, scaled or given.

    Raises DeviceError for a profile that can't be read, UnknownName for what isn't there, UnitError.
    """
    profile = _profile(like)
    noun, quantities = ("device", DEVICE_NUMBERS) if isinstance(profile, Device) else ("link", LINK_NUMBERS)
    data = _content(like, noun)
    data["title"] = f"{profile.title}, derived"
    names = [*(TEXTS if noun == "device" else (TEXTS[0], *OF_TRACE)), *quantities]
    sets: dict[str, str] = {}
    for change in changes:
        name, equals, text = (part.strip() for part in change.partition("="))
        if not equals or not text:
            raise DeviceError(f"--set {change}: write FIELD=VALUE, as in --set ram_bytes=8GiB")
        if name not in names:
            raise UnknownName(f"field of a {noun}", name, names)
        sets[name] = text
        if name in OF_TRACE:
            data["trace"] = {**cast(dict[str, object], data.get("trace", {})), OF_TRACE[name]: text}
        else:
            data[name] = text if name in TEXTS else _number(profile, name, quantities[name], text, like)
    scaled: dict[str, str] = {}
    for base, name in ((base, name) for base, names in SCALED.items() for name in names):
        if base in sets and name in data and name not in sets:
            ratio = quantities[base].parse(sets[base]) / profile.facts[base].value
            text = number_formatter(name)(profile.facts[name].value * ratio)
            data[name], scaled[name] = (
                _number(profile, name, quantities[name], text, like, f"scaled as {base} is"),
                base,
            )
    if set(sets) - {"title"}:
        data.pop("twin", None)  # the list that prints the same numbers
    if "type" in sets and sets["type"] not in DEVICE_TYPES:
        raise UnknownName("type of device", sets["type"], DEVICE_TYPES)
    written = ProfileFile(path, data, {})
    described_device(written) if noun == "device" else described_link(written)
    told = dict.fromkeys(sets, "given") | {name: f"scaled with {base}" for name, base in scaled.items()}
    lines = []
    for line in yaml_lines.write(data, width=110).splitlines():
        if key := re.match(r"\w+(?=:)", line):
            lines.append(f"# {told.get(key[0], f'copied from {printable(like)}')}")
        lines.append(line)
    return noun, "\n".join([*lines, ""]), list(sets), list(scaled)


def _profile(like: str) -> Device | Link:
    """The device or the link of this name, or in this file.  Raises UnknownName, and DeviceError for a fleet."""
    own, mode = split_mode(like)
    is_link = own in link_names()
    if is_file_name(like):
        keys = profile_keys(Path(own))
        if "fleet" in keys:
            raise DeviceError(f"{like} is a fleet, which a scenario derives itself: fleet: {{like: {like}, ...}}")
        is_link = "download_bits_per_second" in keys
    elif not is_link and own in library_files("fleets"):
        raise DeviceError(f"{like} is a fleet, which a scenario derives itself: fleet: {{like: {like}, ...}}")
    elif not is_link and own not in (devices := library_files("devices")):
        raise UnknownName("device or link", own, [*devices, *link_names()])
    return load_link(like) if is_link and mode is None else load_device(like)


def _content(like: str, noun: str) -> dict[str, object]:
    """The content of the profile's file, in its power mode if it names one."""
    own, mode = split_mode(like)
    folder = "devices" if noun == "device" else "networks"
    path = Path(own) if is_file_name(like) else library_files(folder)[own]
    written = read_written(path, f"a {noun} is a mapping with a title")
    if mode is None:
        trace = written.section("trace")  # its file lies beside the other profile
        beside = {"trace": {**trace, "file": str(path.parent / str(trace["file"]))}} if trace else {}
        return {**written.data, **beside}
    return {**{name: value for name, value in written.data.items() if name != MODES}, **written.section(MODES, mode)}


def _number(
    profile: Device | Link, name: str, quantity: units.Quantity, text: str, like: str, how: str = "set"
) -> Mapping[str, object]:
    """What is written of a number that was set; its range is scaled from the one of ``profile``, if that has it."""
    try:
        value = quantity.parse(text)
    except UnitError as error:
        raise UnitError(f"--set {name}: {error}") from None
    fact, show = profile.facts.get(name), number_formatter(name)
    low, high, quote = text, text, f"{text}; {like} has no such number."
    if fact is not None and fact.value:
        ends = (fact.low * value / fact.value, fact.high * value / fact.value)
        low, high = (show(end) if show(end) != show(value) else text for end in ends)
        quote = (
            f"{text}, {how}, in place of {show(fact.value)} ({show(fact.low)} to {show(fact.high)}) of {like}; the "
            f"range is as wide in relation to the value. There: {fact.source.quote}"
        )
    return {
        "value": text,
        "range": text if low == high else f"{low}..{high}",
        "confidence": "estimated",
        "source": {"title": "edgefl devices new --set", "date": datetime.date.today(), "quote": quote, "read": False},
    }
