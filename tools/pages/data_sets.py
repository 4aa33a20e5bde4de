"""The blocks of the page ``data-sets.md``: the sets and partitions that edgefl has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgefl.data.collection import DataSet, FolderSet
from edgefl.data.folders import PublishedDataset
from edgefl.data.partition import MINIMUM
from tools.pages.markdown import capital, listed, oneline, registered, table

ARGUMENTS = {
    "iid": "none",
    "dirichlet": "concentration, above 0",
    "dirichlet-equal": "concentration, above 0",
    "quantity": "concentration, above 0",
    "shared": "samples of a client",
    "groups": "none, or `[LOW, HIGH]`",
    "natural": "none",
}
"""What each partition is given, as in ``data.partition: {dirichlet: 0.5}``."""


def data_set_blocks() -> dict[str, str]:
    """Each block of the page by its name."""
    return {
        "sets from packages": table(("Name", "What it holds", "Read from"), _from_packages()),
        "sets from folders": table(
            ("Name", "What it holds", "Files", "Test set", "Licence", "Where to get it"), _from_folders()
        ),
        "partitions": partitions_table(),
    }


def partitions_table() -> str:
    """Every partition with its argument and what it does."""
    rows = [
        (f"`{name}`", ARGUMENTS[name], _told(part).removesuffix(".")) for name, part in registered("partitions").items()
    ]
    return table(("Name", "Argument", "What it does"), rows)


def _told(part: object) -> str:
    """What a partition does, without its errors."""
    return oneline(part.__doc__ or "").split(" Raises DataError")[0].replace("`MINIMUM`", str(MINIMUM))


def _from_packages() -> Iterator[tuple[str, str, str]]:
    for name, each in registered("datasets").items():
        if isinstance(each, DataSet):
            packages = [f"`{package}`" for package in each.packages]
            yield f"`{name}`", capital(each.summary), listed(packages, "and") if packages else "Python itself"


def _from_folders() -> Iterator[tuple[str, ...]]:
    for name, each in registered("datasets").items():
        if isinstance(each, FolderSet):
            published = getattr(each.find, "__self__", None)
            if not isinstance(published, PublishedDataset):
                raise ValueError(f"{name}: the folder of a set of edgefl's own is found by Published.find")
            files = re.sub(r"[\w/<>*.-]+\.(?:csv|jsonl?|np[yz]|bin|txt|token|jpg|wav)\b", r"`\g<0>`", published.files)
            source = re.sub(r"https://[^\s;,)]+", r"<\g<0>>", re.sub(r'python -c ".*"', r"`\g<0>`", published.source))
            yield f"`{name}`", capital(each.summary), files, published.test, published.licence, source
