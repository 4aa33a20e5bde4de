"""Convert M-Lab's NDT measurements to a link profile of edgefl.

    python tools/import_ndt.py --downloads down.csv --uploads up.csv -o city.yaml

The files are exports (CSV, a JSON array or one JSON object a line) of queries on M-Lab's unified views, such as

    SELECT date, client.IP AS ip, a.MeanThroughputMbps, a.MinRTT, a.LossRate
    FROM `measurement-lab.ndt.unified_downloads` WHERE date = '2025-06-01' AND client.Geo.CountryCode = 'DE'

and the same on ``unified_uploads``, since each view has one direction.  Only the last word of a column
name counts (``a.MinRTT``, ``a_MinRTT``, ``MinRTT``, or nested under ``a``).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgefl import units
from edgefl.arrays import Floats
from edgefl.devices import Link, load_link, read_link
from edgefl.devices.writing import ProfileNumber, lent_watts, profile_text
from edgefl.errors import DeviceError, EdgeflError
from edgefl.runs.durable import replace_file

LEAST_ROWS = 10
MOST_JITTER = 3.0
URL = "https://www.measurementlab.net/tests/ndt/"
RATE, TRIP, LOST = "meanthroughputmbps", "minrtt", "lossrate"
CLIENT, DATE = "ip", "date"
LAST_WORD = re.compile(r"[._]")


@dataclass(frozen=True)
class Tests:
    """Tests of one direction: rates (Mbit/s), round trips (ms) and loss shares where given, clients and dates."""

    path: Path
    rates: Floats
    trips: Floats
    lost: Floats
    clients: list[str]
    dates: list[str]
    left_out: int


def read(path: Path) -> Tests:
    """The tests of an export; rows without a throughput above 0 are left out.  Raises DeviceError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DeviceError(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DeviceError(f"{path}: not UTF-8 text") from None
    numbers: dict[str, list[float]] = {RATE: [], TRIP: [], LOST: []}
    clients, dates, left_out, columns = [], [], 0, set()
    for line, row in _rows(path, text):
        columns |= row.keys()
        values = {name: _number(path, line, name, row.get(name)) for name in numbers}
        rate = values[RATE]
        if rate is None or rate <= 0:
            left_out += 1
            continue
        numbers[RATE].append(rate)
        if values[TRIP] is not None and values[TRIP] > 0:
            numbers[TRIP].append(values[TRIP])
        if values[LOST] is not None:
            if values[LOST] >= 1:
                raise DeviceError(f"{path}:{line}: LossRate must be a share below 1, not {values[LOST]:g}")
            numbers[LOST].append(values[LOST])
        clients.append(str(row.get(CLIENT) or ""))
        dates.append(str(row.get(DATE) or "")[:10])
    if columns and RATE not in columns:
        raise DeviceError(f"{path}: no column MeanThroughputMbps; the columns are {', '.join(sorted(columns))}")
    if len(numbers[RATE]) < LEAST_ROWS:
        raise DeviceError(f"{path}: {len(numbers[RATE])} tests with a throughput; at least {LEAST_ROWS} are needed")
    arrays = {name: np.array(values) for name, values in numbers.items()}
    return Tests(path, arrays[RATE], arrays[TRIP], arrays[LOST], clients, [d for d in dates if d], left_out)


def _rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, values by the lower-case last word of the column); for a JSON array, line is the object's number."""
    start = text.lstrip()[:1]
    try:
        if start == "[":
            objects = enumerate(json.loads(text), 1)
        elif start == "{":
            objects = ((n, json.loads(line)) for n, line in enumerate(text.splitlines(), 1) if line.strip())
        else:
            reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
            names = list(reader.fieldnames or ())
            if twice := [name for name in names if name and names.count(name) > 1]:
                raise DeviceError(
                    f"{path}:1: {names.count(twice[0])} columns are named {twice[0]!r}: rename all but one"
                )
            for row in reader:
                if None in row:  # DictReader's key of fields without a name
                    raise DeviceError(f"{path}:{reader.line_num}: more fields than the {len(names)} columns")
                yield reader.line_num, dict(_flat(row))
            return
        for number, row in objects:
            if not isinstance(row, Mapping):
                raise DeviceError(f"{path}:{number}: expected an object with a test's columns, not {row!r:.40}")
            yield number, dict(_flat(row))
    except json.JSONDecodeError as error:
        raise DeviceError(f"{path}: not valid JSON: {error}") from None
    except csv.Error as error:
        raise DeviceError(f"{path}: not valid CSV: {error}") from None


def _flat(row: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(name, str):
            yield LAST_WORD.split(name)[-1].strip().lower(), value


def _number(path: Path, line: int, name: str, value: object) -> float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "null", "nan")):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise DeviceError(f"{path}:{line}: {name}: {value!r} is not a number") from None
    if math.isnan(number):
        return None
    if math.isinf(number) or number < 0:
        raise DeviceError(f"{path}:{line}: {name}: {value!r} must be 0 or more")
    return number


def sigma(tests: Tests) -> tuple[float, str]:
    """Standard deviation of the log of throughput and its scope: within clients with several tests, or all tests."""
    logs = np.log(tests.rates)
    groups: dict[str, list[float]] = defaultdict(list)
    for client, value in zip(tests.clients, logs, strict=True):
        if client:
            groups[client].append(float(value))
    several = [np.array(values) for values in groups.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if freedom >= LEAST_ROWS:
        squares = sum(float(((values - values.mean()) ** 2).sum()) for values in several)
        return math.sqrt(squares / freedom), f"within {len(several)} clients that made several tests"
    return float(logs.std(ddof=1)), "among all tests, so that differences between clients are in it"


def profile(down: Tests, up: Tests, like: Link, title: str) -> str:
    """YAML of a link profile: medians, with ranges from the 10th to the 90th percentile."""
    today = datetime.date.today()
    dates = sorted({*down.dates, *up.dates})
    source = "The M-Lab NDT Data Set" + (f", {dates[0]} to {dates[-1]}" if dates else "")
    lost = down.lost if len(down.lost) else np.zeros(1)
    loss = float(np.median(lost))

    def entry(values: Floats, show: Any, quote: str) -> ProfileNumber:
        low, middle, high = np.percentile(values, [10, 50, 90])
        summary = f"median {show(middle)}, 10th to 90th percentile {show(low)} to {show(high)}: {quote}"
        return ProfileNumber(show(middle), show(low), show(high), "measured", source, today, summary, URL)

    def throughput(tests: Tests, view: str) -> ProfileNumber:
        quote = (
            f"a.MeanThroughputMbps (payload) of {len(tests.rates)} tests of {view}, {tests.left_out} rows without one; "
            f"divided by 1 - {loss:.3g}, so that it is the payload again after the field loss."
        )
        return entry(tests.rates * 1e6 / (1 - loss), units.show_bits_per_second, quote)

    trips = np.concatenate([down.trips, up.trips])
    if not len(trips):
        raise DeviceError(f"{down.path} and {up.path}: no test has a MinRTT above 0, but a link needs a latency")
    entries = {
        "download_bits_per_second": throughput(down, "unified_downloads"),
        "upload_bits_per_second": throughput(up, "unified_uploads"),
        "latency_seconds": entry(trips / 1000, units.show_seconds, f"a.MinRTT of {len(trips)} tests, a round trip."),
    }
    measured = f"a.LossRate of {len(down.lost)} downloads, the share of what was sent again."
    if len(down.lost):
        entries["loss"] = entry(lost, lambda share: f"{100 * share:.3g} %", measured)
    else:
        quote = "The export has no LossRate; throughput is of payload, so that nothing is left to lose."
        entries["loss"] = ProfileNumber("0", "0", "0", "estimated", source, today, quote, URL)
    entries |= lent_watts(like, "NDT doesn't measure power")
    (down_sigma, scope), (up_sigma, _) = sigma(down), sigma(up)
    low, high = sorted(min(x, MOST_JITTER) for x in (down_sigma, up_sigma))
    entries["jitter"] = ProfileNumber(
        f"{(low + high) / 2:.3g}", f"{low:.3g}", f"{high:.3g}", "estimated", source, today,
        f"sigma of the log of throughput, {scope}: {down_sigma:.3g} down, {up_sigma:.3g} up; their mean. A transfer's "
        "own jitter isn't measured by tests of ten seconds.", URL,
    )  # fmt: skip
    return profile_text({"title": title}, entries)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--downloads", type=Path, required=True, help="export of unified_downloads")
    parser.add_argument("--uploads", type=Path, required=True, help="export of unified_uploads")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the .yaml file to write")
    parser.add_argument("--like", default="wifi-5", help="library link whose watts are taken (default: %(default)s)")
    parser.add_argument("--title", default="M-Lab NDT tests", help="title of the link in tables")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 for an error in the arguments or files."""
    args = _parser().parse_args(arguments)
    try:
        if args.out.suffix != ".yaml":
            raise DeviceError(f"{args.out}: a profile is a .yaml file")
        if args.out.exists() and not args.force:
            raise DeviceError(f"{args.out} exists; --force replaces it")
        text = profile(read(args.downloads), read(args.uploads), load_link(args.like), args.title)
        replace_file(args.out, text.encode())
        link = read_link(args.out)
        print(
            f"written: {args.out}: {units.show_bits_per_second(link.download_bits_per_second)} down, "
            f"{units.show_bits_per_second(link.upload_bits_per_second)} up, "
            f"{units.show_seconds(link.latency_seconds)}, jitter {link.jitter:g}"
        )
    except EdgeflError as error:
        print(f"import_ndt: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
