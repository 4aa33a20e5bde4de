"""Hooks of mkdocs: the version below each page, the quickstart's page with sliders inside one, and links to
repository files outside docs replaced by their texts.

Such links work on a code host, but the site has only the pages.  A link to a missing file is kept, so that a strict
build fails.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """The site's settings with edgefl's version."""
    source = (Path(config["docs_dir"]).parent / "edgefl/__init__.py").read_text(encoding="utf-8")
    config["copyright"] = f"edgefl {VERSION.findall(source)[0]}"
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page without links to files outside docs."""
    return without_outer_links(markdown, Path(config["docs_dir"]), Path(config["docs_dir"]) / page.file.src_uri)


def on_post_build(*, config: Any) -> None:
    """Write the page that ``guides/sliders.md`` has built in."""
    import edgefl

    edgefl.sweep("quickstart", page=Path(config["site_dir"]) / "guides/sliders/quickstart.html")


def without_outer_links(markdown: str, docs: Path, page: Path) -> str:
    """The text of ``page`` without links from the folder ``docs`` to existing files outside it."""

    def replaced(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        return match[1] if target.exists() and not target.is_relative_to(docs.resolve()) else match[0]

    return LINK.sub(replaced, markdown)
