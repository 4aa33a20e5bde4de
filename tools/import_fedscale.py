"""Convert FedScale's traces to files of edgefl: availability of devices, and rates of devices and links.

    python tools/import_fedscale.py availability client_behave_trace -o trace.csv
    python tools/import_fedscale.py capacity client_device_capacity --sample-flops 0.6GFLOP -o fedscale.yaml

Both read local copies of the pickles of FedScale's repository (benchmark/dataset/data/device_info), or the same data as
JSON.  No code of a pickle runs: see ``_PlainUnpickler``.
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
"""Most rows of a trace: a period in a wrong unit would repeat a client almost without end."""
URL = "https://github.com/SymbioticLab/FedScale/tree/master/benchmark/dataset/data/device_info"


# reading an untrusted pickle ------------------------------------------------------------------------------------------


class _Number:
    """Stand-in for numpy's dtype; stores the code and the byte order of a number type."""

    def __init__(self, code: object = "", *_: object) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.order = state[1]


_CODES = {"f8": "d", "f4": "f", "i8": "q", "i4": "i"}


def _scalar(kind: object, data: object = b"", *_: object) -> float:
    """Stand-in for numpy's scalar constructor; decodes the bytes of a plain number and refuses everything else."""
    if not isinstance(kind, _Number) or kind.code not in _CODES or not isinstance(data, bytes):
        raise pickle.UnpicklingError("a numpy value that is no plain number")
    return float(struct.unpack(kind.order + _CODES[kind.code], data)[0])


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler of containers, numbers and strings only.

    A pickle can name any function to be called.  Here no name is imported: the two names in FedScale's own file (its
    numbers are numpy.float64) give the stand-ins above, and every other name raises UnpicklingError.
    """

    _stand_ins: Mapping[tuple[str, str], Any] = {
        ("numpy", "dtype"): _Number,
        ("numpy.core.multiarray", "scalar"): _scalar,
        ("numpy._core.multiarray", "scalar"): _scalar,
    }

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name; raises UnpicklingError for any other name."""
        if (module, name) not in self._stand_ins:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which plain data don't need")
        return self._stand_ins[module, name]

    def persistent_load(self, pid: object) -> Any:
        """Raise UnpicklingError: plain data have no external references."""
        raise pickle.UnpicklingError("it refers to an object outside the file")


def load(path: Path) -> dict[str, Any]:
    """The mapping from client (text) to entry in a pickle or JSON file, in the file's order.  Raises DeviceError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DeviceError(f"{path}: can't be read: {error.strerror}") from None
    try:
        clients = json.loads(data) if data.lstrip()[:1] in (b"{", b"[") else _PlainUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError as error:
        raise DeviceError(f"{path}: refused: {error}") from None
    except Exception as error:  # a broken pickle may raise any exception
        raise DeviceError(f"{path}: neither JSON nor a pickle of plain data ({type(error).__name__})") from None
    if not isinstance(clients, dict) or not clients:
        raise DeviceError(f"{path}: expected a mapping of clients, found {_described(clients)}")
    return {str(key): value for key, value in clients.items()}


def _described(value: object) -> str:
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
    """(period, sorted and merged [start, end) of a client's availability in seconds, without empty intervals)."""
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
    """Repeat a client's intervals until the horizon, as FedScale takes times modulo the client's own period."""
    for again in range(math.ceil(horizon / period) if times else 0):
        for start, end in times:
            if again * period + start < horizon:
                yield again * period + start, min(again * period + end, horizon)


def availability(path: Path, output: Path, horizon: float | None, most: int | None) -> str:
    """Write the CSV of a trace; returns a summary.  Raises DeviceError."""
    clients = {client: intervals(path, client, entry) for client, entry in list(load(path).items())[:most]}
    horizon = horizon or max(period for period, _ in clients.values())
    expected = sum(len(times) * horizon / period for period, times in clients.values())
    if expected > MOST_ROWS:
        raise DeviceError(
            f"{path}: repeated until {horizon:g} s these are about {expected:.3g} intervals, more than {MOST_ROWS:,}; "
            "use a shorter --horizon or fewer --clients"
        )
    text, rows, never = io.StringIO(newline=""), 0, 0
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", "start", "end"])
    share = 0.0
    for client, (period, times) in clients.items():
        never += not times
        for start, end in repeated(period, times, horizon):
            writer.writerow([client, f"{start:.12g}", f"{end:.12g}"])
            rows, share = rows + 1, share + (end - start) / horizon
    if not rows:
        raise DeviceError(f"{path}: no client is ever available")
    replace_file(output, text.getvalue().encode())
    available = len(clients) - never
    return (
        f"written: {output}: {rows} intervals of {available} clients; "
        f"{never} clients are never available and have no row\n"
        f"the average client in the trace is available {units.show_share(share / available)} of the time\n"
        f"in a scenario: fleet: {{availability: {{trace: {{file: {output}, period: {horizon:g} s}}}}}}"
    )


# capacity ------------------------------------------------------------------------------------------------------------


def nearest(values: np.ndarray[Any, Any], known: Mapping[str, float]) -> tuple[Counter[str], np.ndarray[Any, Any]]:
    """Number of values nearest (by ratio) to each known rate, and each value divided by its nearest rate."""
    names, rates = list(known), np.log(list(known.values()))
    indices = np.abs(np.log(values)[:, None] - rates[None, :]).argmin(axis=1)
    counts = Counter({name: int((indices == index).sum()) for index, name in enumerate(names)})
    return counts, values / np.exp(rates)[indices]


def shares(counts: Mapping[str, int]) -> dict[str, str]:
    """Percentages with two decimals that sum to 100; zero counts are omitted."""
    total, hundredths = sum(counts.values()), 10_000
    whole = {name: n * hundredths // total for name, n in counts.items()}
    by_remainder = sorted(counts, key=lambda name: -(counts[name] * hundredths % total))
    for name in by_remainder[: hundredths - sum(whole.values())]:
        whole[name] += 1
    return {name: f"{n / 100:g}%" for name, n in whole.items() if n}


def capacity(path: Path, output: Path, sample_flops: float, devices: Sequence[Device], links: Sequence[Link]) -> str:
    """Write a fleet of the nearest profiles; returns a summary with their distances.  Raises DeviceError."""
    clients = load(path)
    milliseconds = np.array([_number(path, client, entry, "computation") for client, entry in clients.items()])
    kilobits = np.array([_number(path, client, entry, "communication") for client, entry in clients.items()])
    rates = sample_flops / (milliseconds / 1000)
    nearest_devices, device_ratios = nearest(rates, {d.name: d.flops_per_second for d in devices})
    nearest_links, link_ratios = nearest(1000 * kilobits, {x.name: x.download_goodput for x in links})
    quote = (
        f"{len(clients)} clients: computation 10th, 50th and 90th percentile {_percentiles(milliseconds)} ms per "
        f"sample, taken as a forward pass of {units.show_flops(sample_flops)}; "
        f"communication {_percentiles(kilobits)} kbit/s, one rate for both directions, compared with the download's. "
        "Each client has the nearest profile: its own rate over the profile's is "
        f"{_percentiles(device_ratios)} for devices and {_percentiles(link_ratios)} for links."
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
        "fleet": {"devices": shares(nearest_devices), "links": shares(nearest_links)},
    }
    replace_file(output, yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110).encode())
    return f"written: {output}\n{quote}"


def _percentiles(values: np.ndarray[Any, Any]) -> str:
    return " / ".join(f"{x:.3g}" for x in np.percentile(values, [10, 50, 90]))


# the command ---------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    trace = commands.add_parser("availability", help="a trace CSV: client, start, end in seconds")
    fleet = commands.add_parser("capacity", help="a fleet YAML: shares of devices and links of the library")
    for command, name in ((trace, "client_behave_trace"), (fleet, "client_device_capacity")):
        command.add_argument("file", type=Path, help=f"FedScale's {name}, a pickle, or the same as JSON")
        command.add_argument("-o", "--out", type=Path, required=True, help="the file to write")
        command.add_argument("--force", action="store_true", help="replace a file that exists")
    trace.add_argument("--horizon", help="length of the trace, such as 7 d (default: the longest finish_time)")
    trace.add_argument("--clients", type=int, help="only the first N clients of the file")
    fleet.add_argument(
        "--sample-flops", required=True,
        help="FLOPs of one forward pass of the timed model (FedScale's files don't name it)",
    )  # fmt: skip
    fleet.add_argument("--devices", help="candidates, comma-separated (default: the phones of the library)")
    fleet.add_argument("--links", default=",".join(LINKS), help="candidates, comma-separated (default: %(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 for an error in the arguments or files."""
    args = _parser().parse_args(arguments)
    try:
        if args.out.exists() and not args.force:
            raise DeviceError(f"{args.out} exists; --force replaces it")
        if args.command == "availability":
            if args.clients is not None and args.clients < 1:
                raise DeviceError(f"--clients must be 1 or more, not {args.clients}")
            horizon = units.SECONDS.parse(args.horizon) if args.horizon else None
            print(availability(args.file, args.out, horizon, args.clients))
        else:
            names = args.devices.split(",") if args.devices else None
            devices = [load_device(n) for n in names or device_names() if names or load_device(n).type == "phone"]
            links = [load_link(n) for n in args.links.split(",")]
            flops = units.FLOPS.parse(args.sample_flops)
            if not flops:
                raise DeviceError("--sample-flops must be above 0")
            print(capacity(args.file, args.out, flops, devices, links))
    except EdgeflError as error:
        print(f"import_fedscale: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
