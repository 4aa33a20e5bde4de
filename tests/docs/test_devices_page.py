"""The page about devices holds what the files of the library hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "devices.md").read_text(encoding="utf-8")


def test_every_number_of_every_file_is_a_row_with_its_confidence_and_source() -> None:
    for path in [*ROOT.glob("profiles/devices/*.yaml"), *ROOT.glob("profiles/networks/*.yaml")]:
        (section,) = (each for each in PAGE.split("\n### ") if each.startswith(f"{path.stem}\n"))
        rows = [line.split(" | ") for line in section.splitlines() if line.startswith(("| `", "| @"))]
        written = [row for row in rows if row[3] != "fitted"]  # a class's, which no file has
        found = {row[0].strip("| "): (row[3], row[4].removesuffix(" |")) for row in written}
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        modes = {f"@{mode}: ": numbers for mode, numbers in data.pop("modes", {}).items()}
        held = {
            f"{start}`{name}`": number
            for start, numbers in {"": data, **modes}.items()
            for name, number in numbers.items()
            if isinstance(number, dict) and "source" in number
        }
        assert found.keys() == held.keys(), path.stem
        for name, number in held.items():
            confidence, source = found[name]
            assert confidence == number["confidence"] and number["source"]["title"] in source, (path.stem, name)


def test_the_page_counts_what_the_files_say() -> None:
    """Numbers of devices by confidence, of YAML alone; what is fitted stands in no file."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in ROOT.glob("profiles/devices/*.yaml")]
    written = Counter(n["confidence"] for file in files for n in file.values() if isinstance(n, dict) and "source" in n)
    (row,) = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| 30 devices |")]
    assert [int(row[i]) for i in (1, 2, 4)] == [written[each] for each in ("measured", "datasheet", "estimated")]


def test_every_fleet_is_a_row_with_its_shares_and_who_says_so() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.split("## All fleets")[1].split("\n## ")[0].splitlines()]
    found = {row[0].strip("`"): row[2:] for row in rows if len(row) == 4}
    files = {path.stem: yaml.safe_load(path.read_text()) for path in ROOT.glob("profiles/fleets/*.yaml")}
    assert files.keys() <= found.keys()
    for name, file in files.items():
        for field, told in zip(("devices", "links"), found[name], strict=True):
            title = file.get("sources", {}).get(field, file["source"])["title"]
            assert "(own estimate)" in told if title == "Own estimate" else f"[{title}]" in told
            assert all(f"{each} {share}" in told for each, share in file["fleet"][field].items())


def test_a_published_power_stands_there() -> None:
    """https://github.com/geerlingguy/top500-benchmark: 7.2 W of a Raspberry Pi 4 over a Linpack run."""
    section = PAGE.split("\n### raspberry-pi-4-4gb\n")[1].split("\n### ")[0]
    assert "\n| `compute_watts` | 7.2 W | 6 W to 7.2 W | measured |" in section
