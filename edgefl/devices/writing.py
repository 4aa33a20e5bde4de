"""Writing a profile that the loader reads back: every number with its range, its source and how sure it is."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from edgefl import units, yaml_lines
from edgefl.devices.facts import Confidence
from edgefl.devices.profile import Link


@dataclass(frozen=True)
class Entry:
    """One number of a profile as text with a unit: ``low <= value <= high``, and where it comes from."""

    value: str
    low: str
    high: str
    confidence: Confidence
    title: str
    date: datetime.date
    quote: str
    url: str | None = None


def lent_watts(link: Link, why: str) -> dict[str, Entry]:
    """The radio's watts as a link of the library has them; ``why`` they are taken from there begins the quote."""
    found = {}
    for name in ("download_watts", "upload_watts"):
        fact = link.facts[name]
        value, low, high = (units.show_watts(x) for x in (fact.value, fact.low, fact.high))
        quote = f"{why}: taken from {link.name} of the library, which says: {fact.source.quote}"
        found[name] = Entry(value, low, high, "estimated", fact.source.title, fact.source.date, quote, fact.source.url)
    return found


def profile_text(texts: Mapping[str, str], entries: Mapping[str, Entry]) -> str:
    """The YAML of a device or link: plain texts (title, kind) first, then the numbers in their order."""
    document: dict[str, object] = dict(texts)
    for name, entry in entries.items():
        source: dict[str, object] = {"title": entry.title}
        if entry.url is not None:
            source["url"] = entry.url
        source |= {"date": entry.date, "quote": entry.quote}
        document[name] = {
            "value": _plain(entry.value),
            "range": _plain(entry.low) if entry.low == entry.high else f"{entry.low}..{entry.high}",
            "confidence": entry.confidence,
            "source": source,
        }
    return yaml_lines.write(document, width=110)


def _plain(text: str) -> str | float:
    """A number without a unit is written without quotes."""
    try:
        return float(text)
    except ValueError:
        return text
