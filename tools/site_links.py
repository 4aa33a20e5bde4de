"""A hook of mkdocs: a link to a file of the repository that lies outside docs stands in the site as its text.

On a code host such a link leads to the file; the site has the pages alone.  A link to what doesn't exist is left, so
that a strict build fails.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page with such links taken out."""
    return without_outer_links(markdown, Path(config["docs_dir"]), Path(config["docs_dir"]) / page.file.src_uri)


def without_outer_links(markdown: str, docs: Path, page: Path) -> str:
    """The text of ``page`` without links from the folder ``docs`` to existing files outside it."""

    def replaced(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        return match[1] if target.exists() and not target.is_relative_to(docs.resolve()) else match[0]

    return LINK.sub(replaced, markdown)
