"""HTML by templates: tables and pictures of runs in notebooks, and the reports' pages."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.errors import visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HERE = Path(__file__).parent
"""Also has ``shell.html``, what every page has around it, and ``shell.css`` and ``theme.js`` for it."""


@lru_cache
def templates(*folders: Path) -> Environment:
    """The templates of these folders and of this one.

    What they are given is escaped unless it is ``markupsafe.Markup``.  Characters that turn the order of others, and
    control characters, are shown as escapes.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([*folders, HERE]),
        autoescape=True,
        finalize=lambda given: visible(given) if type(given) is str else given,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def read_texts(*paths: Path) -> Markup:
    """The texts of the package's own files, one after another, as they stand."""
    from markupsafe import Markup

    return Markup("".join(path.read_text(encoding="utf-8") for path in paths))


def data(value: object) -> Markup:
    """A value as JSON in which no tag can begin.  Raises ValueError for a number that isn't finite."""
    from markupsafe import Markup

    return Markup(json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def table(title: str, rows: Sequence[Mapping[str, str]]) -> str:
    """A table with a caption; the columns are those of all rows, in order, and what a row lacks is a dash."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return templates().get_template("table.html").render(title=title, columns=columns, rows=rows)


def picture(png: bytes, words: str) -> str:
    """A PNG as an inline image with its words for screen readers."""
    return templates().get_template("picture.html").render(words=words, data=base64.b64encode(png).decode())
