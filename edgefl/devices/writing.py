"""Writing device and link profiles as YAML: every number has a range, a confidence and a source."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from edgefl import units, yaml_lines
from edgefl.devices.profile import Link
from edgefl.devices.written_facts import Confidence


@dataclass(frozen=True)
class ProfileNumber:
    """One number of a profile and its source. Values are texts with units, and ``low <= value <= high``."""

    value: str
    low: str
    high: str
    confidence: Confidence
    title: str
    date: datetime.date
    quote: str
    url: str | None = None


def lent_watts(link: Link, why: str) -> dict[str, ProfileNumber]:
    """``download_watts`` and ``upload_watts`` of a library link, as estimates for another link.

    The quote of each entry starts with ``why``, the reason for using that link's numbers.
    """
    entries = {}
    for name in ("download_watts", "upload_watts"):
        fact = link.facts[name]
        value, low, high = (units.show_watts(x) for x in (fact.value, fact.low, fact.high))
        quote = f"{why}: taken from {link.name} of the library, which says: {fact.source.quote}"
        entries[name] = ProfileNumber(
            value, low, high, "estimated", fact.source.title, fact.source.date, quote, fact.source.url
        )
    return entries


def profile_text(texts: Mapping[str, object], entries: Mapping[str, ProfileNumber]) -> str:
    """The YAML text of a device or link: first what has no source (title, kind, processor), then the numbers."""
    document: dict[str, object] = dict(texts)
    for name, entry in entries.items():
        source: dict[str, object] = {"title": entry.title}
        if entry.url is not None:
            source["url"] = entry.url
        source |= {"date": entry.date, "quote": entry.quote}
        document[name] = {
            "value": _unquote_number(entry.value),
            "range": _unquote_number(entry.low) if entry.low == entry.high else f"{entry.low}..{entry.high}",
            "confidence": entry.confidence,
            "source": source,
        }
    return yaml_lines.write(document, width=110)


def _unquote_number(text: str) -> str | float:
    """A number without a unit as a float, so that YAML writes it without quotes."""
    try:
        return float(text)
    except ValueError:
        return text
