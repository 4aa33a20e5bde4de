"""FedScale's traces as files of edgefl: when devices were there, and what they and their links can do.

    python tools/import_fedscale.py availability client_behave_trace -o trace.csv
    python tools/import_fedscale.py capacity client_device_capacity --sample-flops 0.6GFLOP -o fedscale.yaml

Both read the pickles of FedScale's repository (benchmark/dataset/data/device_info) or the same as JSON, from files
that you have.  Nothing in a pickle is run: see ``_Plain``.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import math
import pickle  # noqa: TID251 -- FedScale's files are pickles; only the restricted loader below is used
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from edgefl import units
from edgefl.devices import Device, Link, device_names, load_device, load_link
from edgefl.errors import DeviceError, EdgeflError
from edgefl.runs.durable import replace_file

LINKS = ("3g", "lte", "5g-nr", "wifi-4", "wifi-5")
MOST_ROWS = 50_000_000
"""Of a trace: a client whose own period is a slip of a unit would be repeated without end."""
URL = "https://github.com/SymbioticLab/FedScale/tree/master/benchmark/dataset/data/device_info"


# reading a pickle of strangers ---------------------------------------------------------------------------------------


class _Number:
    """Stands in for numpy's dtype: remembers the code and the byte order of one kind of number."""

    def __init__(self, code: object = "", *_: object) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.order = state[1]


_CODES = {"f8": "d", "f4": "f", "i8": "q", "i4": "i"}


def _scalar(kind: object, data: object = b"", *_: object) -> float:
    """Stands in for the function that makes numpy's numbers: eight bytes are a number, and nothing else is."""
    if not isinstance(kind, _Number) or kind.code not in _CODES or not isinstance(data, bytes):
        raise pickle.UnpicklingError("a numpy value that is no plain number")
    return float(struct.unpack(kind.order + _CODES[kind.code], data)[0])


class _Plain(pickle.Unpickler):
    """Loads containers, numbers and strings, and nothing else.

    A pickle can name any function and have it called.  Here no name is looked up: two names that FedScale's own file
    has (its numbers are numpy.float64) are answered with the stand-ins above, every other one ends the reading.
    """

    _stand_ins: Mapping[tuple[str, str], Any] = {
        ("numpy", "dtype"): _Number,
        ("numpy.core.multiarray", "scalar"): _scalar,
        ("numpy._core.multiarray", "scalar"): _scalar,
    }

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of this name, or an error."""
        if (module, name) not in self._stand_ins:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which plain data don't need")
        return self._stand_ins[module, name]

    def persistent_load(self, pid: object) -> Any:
        """Refused: plain data refer to nothing outside."""
        raise pickle.UnpicklingError("it refers to something outside")


def load(path: Path) -> dict[str, Any]:
    """The mapping of clients in a pickle or JSON file; keys as texts, in the file's order.  Raises DeviceError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DeviceError(f"{path}: can't be read: {error.strerror}") from None
    try:
        found = json.loads(data) if data.lstrip()[:1] in (b"{", b"[") else _Plain(io.BytesIO(data)).load()
    except pickle.UnpicklingError as error:
        raise DeviceError(f"{path}: refused: {error}") from None
    except Exception as error:  # a broken pickle may fail in any way, and none of them says more
        raise DeviceError(f"{path}: neither JSON nor a pickle of plain data ({type(error).__name__})") from None
    if not isinstance(found, dict) or not found:
        raise DeviceError(f"{path}: expected a mapping of clients, found {_said(found)}")
    return {str(key): value for key, value in found.items()}


def _said(value: object) -> str:
    return "an empty one" if value == {} else f"a {type(value).__name__}"


def _number(path: Path, client: str, entry: object, key: str) -> float:
    if not isinstance(entry, Mapping) or key not in entry:
        raise DeviceError(f"{path}: client {client}: expected a mapping with {key!r}")
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise DeviceError(f"{path}: client {client}: {key} must be a number above 0, not {value!r}")
    return float(value)


# availability --------------------------------------------------------------------------------------------------------


def intervals(path: Path, client: str, entry: object) -> tuple[float, list[tuple[float, float]]]:
    """(period, [start, end) of each time that a client was there), merged and in order; empty ones left out."""
    period = _number(path, client, entry, "finish_time")
    assert isinstance(entry, Mapping)
    active, inactive = entry.get("active"), entry.get("inactive")
    if not isinstance(active, list) or not isinstance(inactive, list) or len(active) != len(inactive):
        raise DeviceError(f"{path}: client {client}: active and inactive must be lists of equal length")
    for time in (*active, *inactive):
        if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < math.inf:
            raise DeviceError(f"{path}: client {client}: a time must be 0 s or more, not {time!r}")
    merged: list[tuple[float, float]] = []
    for start, end in sorted(zip(map(float, active), map(float, inactive), strict=True)):
        if end < start:
            raise DeviceError(f"{path}: client {client}: it is active at {start:g} s and inactive before, at {end:g} s")
        end = min(end, period)
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return period, merged


def repeated(period: float, times: Sequence[tuple[float, float]], horizon: float) -> Iterator[tuple[float, float]]:
    """A client's times over and over until the horizon, as FedScale takes a time modulo the client's own period."""
    for again in range(math.ceil(horizon / period) if times else 0):
        for start, end in times:
            if again * period + start < horizon:
                yield again * period + start, min(again * period + end, horizon)


def availability(path: Path, output: Path, horizon: float | None, most: int | None) -> str:
    """Write the CSV; says what was written."""
    found = {client: intervals(path, client, entry) for client, entry in list(load(path).items())[:most]}
    horizon = horizon or max(period for period, _ in found.values())
    expected = sum(len(times) * horizon / period for period, times in found.values())
    if expected > MOST_ROWS:
        raise DeviceError(
            f"{path}: repeated until {horizon:g} s these are some {expected:.3g} times, more than {MOST_ROWS:,}; "
            "take a shorter --horizon or fewer --clients"
        )
    text, rows, never = io.StringIO(newline=""), 0, 0
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", "start", "end"])
    share = 0.0
    for client, (period, times) in found.items():
        never += not times
        for start, end in repeated(period, times, horizon):
            writer.writerow([client, f"{start:.12g}", f"{end:.12g}"])
            rows, share = rows + 1, share + (end - start) / horizon
    if not rows:
        raise DeviceError(f"{path}: no client is ever there")
    replace_file(output, text.getvalue().encode())
    there = len(found) - never
    return (
        f"written: {output}: {rows} times of {there} clients; {never} that were never there have no row\n"
        f"on average a client of them is there {units.show_share(share / there)} of the time\n"
        f"in a scenario: fleet: {{availability: {{trace: {{file: {output}, period: {horizon:g} s}}}}}}"
    )


# capacity ------------------------------------------------------------------------------------------------------------


def nearest(values: np.ndarray[Any, Any], known: Mapping[str, float]) -> tuple[Counter[str], np.ndarray[Any, Any]]:
    """How many values each known rate is the nearest to (by ratio), and value / that rate for every value."""
    names, rates = list(known), np.log(list(known.values()))
    places = np.abs(np.log(values)[:, None] - rates[None, :]).argmin(axis=1)
    counts = Counter({name: int((places == index).sum()) for index, name in enumerate(names)})
    return counts, values / np.exp(rates)[places]


def shares(counts: Mapping[str, int]) -> dict[str, str]:
    """Percentages of two decimals that sum to 100; who has none is left out."""
    total, hundredths = sum(counts.values()), 10_000
    whole = {name: n * hundredths // total for name, n in counts.items()}
    rest = sorted(counts, key=lambda name: -(counts[name] * hundredths % total))
    for name in rest[: hundredths - sum(whole.values())]:
        whole[name] += 1
    return {name: f"{n / 100:g}%" for name, n in whole.items() if n}


def capacity(path: Path, output: Path, sample_flops: float, devices: Sequence[Device], links: Sequence[Link]) -> str:
    """Write a fleet of the nearest profiles; says how near they are."""
    found = load(path)
    milliseconds = np.array([_number(path, client, entry, "computation") for client, entry in found.items()])
    kilobits = np.array([_number(path, client, entry, "communication") for client, entry in found.items()])
    rates, factors = nearest(sample_flops / (milliseconds / 1000), {d.name: d.flops_per_second for d in devices})
    speeds, others = nearest(1000 * kilobits, {x.name: x.download_goodput for x in links})
    quote = (
        f"{len(found)} clients: computation 10th, 50th and 90th percentile {_percentiles(milliseconds)} ms per sample, "
        f"taken as a forward pass of {units.show_flops(sample_flops)}; communication {_percentiles(kilobits)} kbit/s, "
        "one rate for both directions, compared with the download's. Each client has the nearest profile: its own "
        f"rate over the profile's is {_percentiles(factors)} for devices and {_percentiles(others)} for links."
    )
    document = {
        "title": "FedScale's clients by the nearest profiles",
        "source": {
            "title": "FedScale, client_device_capacity",
            "url": URL,
            "date": datetime.date.today(),
            "quote": quote,
        },
        "confidence": "estimated",
        "fleet": {"devices": shares(rates), "links": shares(speeds)},
    }
    replace_file(output, yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110).encode())
    return f"written: {output}\n{quote}"


def _percentiles(values: np.ndarray[Any, Any]) -> str:
    return " / ".join(f"{x:.3g}" for x in np.percentile(values, [10, 50, 90]))


# the command ---------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    there = commands.add_parser("availability", help="a trace CSV: client, start, end in seconds")
    able = commands.add_parser("capacity", help="a fleet YAML: shares of devices and links of the library")
    for each, name in ((there, "client_behave_trace"), (able, "client_device_capacity")):
        each.add_argument("file", type=Path, help=f"FedScale's {name}, a pickle, or the same as JSON")
        each.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
        each.add_argument("--force", action="store_true", help="replace a file that exists")
    there.add_argument("--horizon", help="cover so much time (7 d); the longest finish_time unless given")
    there.add_argument("--clients", type=int, help="only the first N clients of the file")
    able.add_argument(
        "--sample-flops", required=True,
        help="FLOPs of one forward pass of the model that was timed (FedScale's files don't name it)",
    )  # fmt: skip
    able.add_argument("--devices", help="candidates, comma-separated; the library's phones unless given")
    able.add_argument("--links", default=",".join(LINKS), help="candidates, comma-separated; %(default)s unless given")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 for what the user can mend."""
    wanted = _parser().parse_args(arguments)
    try:
        if wanted.output.exists() and not wanted.force:
            raise DeviceError(f"{wanted.output} exists; --force replaces it")
        if wanted.command == "availability":
            if wanted.clients is not None and wanted.clients < 1:
                raise DeviceError(f"--clients: {wanted.clients} leaves nobody; 1 or more")
            horizon = units.SECONDS.parse(wanted.horizon) if wanted.horizon else None
            print(availability(wanted.file, wanted.output, horizon, wanted.clients))
        else:
            names = wanted.devices.split(",") if wanted.devices else None
            devices = [load_device(n) for n in names or device_names() if names or load_device(n).kind == "phone"]
            links = [load_link(n) for n in wanted.links.split(",")]
            flops = units.FLOPS.parse(wanted.sample_flops)
            if not flops:
                raise DeviceError("--sample-flops: a forward pass has more than 0 FLOPs")
            print(capacity(wanted.file, wanted.output, flops, devices, links))
    except EdgeflError as error:
        print(f"import_fedscale: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
