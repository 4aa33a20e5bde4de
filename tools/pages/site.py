"""Hooks of mkdocs: the project's address, pages that include the repository's files, links to files outside docs, both
spellings in the search, the version below each page, and the quickstart's page with sliders inside one.

The owner fills in one value, ``extra.source`` of mkdocs.yml.  With it pages have links to the source and to their own
text, and a canonical address.  Links to repository files outside docs then lead there; without it they are replaced by
their texts.  A link to a missing file is kept, so that a strict build fails.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
INCLUDED = re.compile(r"<!-- file: (\S+) -->\n.*?<!-- /file -->", re.DOTALL)
WITH_SOURCE = re.compile(r"<!-- with the address: (.*?) -->", re.DOTALL)
BRANCH = "main"
PAGES_OF_FILES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "LICENSE": "project/licence.md",
    "CITATION.cff": "project/cite.md",
}
"""Files of the repository that the site has, and their pages."""
SPELLINGS = (
    (r"(\w{3,})is(e|ed|es|er|ers|ing|ation|ations)\b", r"\1iz\2"),
    (r"(\w{3,})iz(e|ed|es|er|ers|ing|ation|ations)\b", r"\1is\2"),
    (r"(analy)s(e|ed|es|ing)", r"\1z\2"),
    (r"(behavi|col|hon|neighb|lab|fav)our(\w*)", r"\1or\2"),
    (r"(cent|fib|met)re(s?)", r"\1er\2"),
    (r"(licen|defen)ce(s?)", r"\1se\2"),
    (r"(mode|labe|cance|leve)ll(ed|ing|er)", r"\1l\2"),
    (r"(program)me(s?)", r"\1\2"),
    (r"(catalog|dialog)ue(s?)", r"\1\2"),
)
"""Endings that British and American English spell differently."""
SAME_IN_BOTH = re.compile(
    r"(?:\w*wise|\w*promis|advertis|advis|devis|exercis|expertis|franchis|improvis|precis|premis|revis|surpris|supervis|"
    r"telev|treatis|concis|nois|pois|rais|prais|siz|priz|seiz|resiz|emphas(?=is$))\w*"
)
"""Words with such an ending that both spell alike."""


def on_config(config: Any) -> Any:
    """The site's settings with edgefl's version, and what follows from the project's address."""
    source = (Path(config["docs_dir"]).parent / "edgefl/__init__.py").read_text(encoding="utf-8")
    config["copyright"] = f"edgefl {VERSION.findall(source)[0]}"
    for name, value in addresses(config["extra"].get("source")).items():
        config[name] = config[name] or value
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page with the files that it includes, and without relative links to files outside docs."""
    docs, source = Path(config["docs_dir"]), config["extra"].get("source")
    path = docs / page.file.src_uri
    markdown = WITH_SOURCE.sub(lambda match: match[1].replace("{source}", source) if source else "", markdown)
    return with_links_inside(with_files(markdown, path), docs, path, source)


def on_post_build(*, config: Any) -> None:
    """Write the page that ``guides/sliders.md`` has built in, and both spellings into the index of the search."""
    import edgefl

    edgefl.sweep("quickstart", page=Path(config["site_dir"]) / "guides/sliders/quickstart.html")
    index = Path(config["site_dir"]) / "search/search_index.json"
    if index.exists():
        found = json.loads(index.read_text(encoding="utf-8"))
        for section in found["docs"]:
            if more := other_spellings(f"{section['title']} {section['text']}"):
                section["text"] += f" <p>{' '.join(more)}</p>"
        index.write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")


def addresses(source: str | None) -> dict[str, str]:
    """Settings of mkdocs that follow from the repository's address; {} without one.

    The site's own address follows on GitHub and GitLab, which publish sites below the owner's name; elsewhere
    ``site_url`` of mkdocs.yml gives it.
    """
    if not source:
        return {}
    parts = urlsplit(source)
    owner, _, name = parts.path.strip("/").partition("/")
    edit = f"-/edit/{BRANCH}/docs/" if "gitlab" in parts.netloc else f"edit/{BRANCH}/docs/"
    found = {"repo_url": source.rstrip("/"), "repo_name": f"{owner}/{name}", "edit_uri": edit}
    host = {"github.com": "github.io", "gitlab.com": "gitlab.io"}.get(parts.netloc)
    return {**found, "site_url": f"https://{owner.lower()}.{host}/{name}/"} if host else found


def with_files(markdown: str, page: Path) -> str:
    """The text of ``page`` with the files between ``<!-- file: PATH -->`` and ``<!-- /file -->``."""

    def included(match: re.Match[str]) -> str:
        path = (page.parent / match[1]).resolve()
        text = path.read_text(encoding="utf-8")
        return _moved(text, path.parent, page.parent) if path.suffix == ".md" else f"```text\n{text.rstrip()}\n```"

    return INCLUDED.sub(included, markdown)


def with_links_inside(markdown: str, docs: Path, page: Path, source: str | None = None) -> str:
    """The text of ``page`` whose links from the folder ``docs`` to existing files outside it lead to the file's page,
    to the file in the repository at ``source``, or are replaced by their texts.
    """
    root = docs.resolve().parent

    def replaced(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        if not target.exists() or target.is_relative_to(docs.resolve()):
            return match[0]
        path = target.relative_to(root).as_posix() if target.is_relative_to(root) else ""
        if path in PAGES_OF_FILES:
            return f"[{match[1]}]({os.path.relpath(docs / PAGES_OF_FILES[path], page.parent)}{match[3] or ''})"
        if source and path:
            view = ("-/" if "gitlab" in source else "") + ("tree" if target.is_dir() else "blob")
            return f"[{match[1]}]({source.rstrip('/')}/{view}/{BRANCH}/{path}{match[3] or ''})"
        return match[1]

    return LINK.sub(replaced, markdown)


def other_spellings(text: str) -> list[str]:
    """The words of a text whose British and American spellings differ, in the spelling that the text doesn't have."""
    words = set(re.findall(r"[a-z]{5,}", re.sub(r"<[^>]*>", " ", text.lower())))
    found = {
        re.sub(pattern, other, word)
        for word in words
        if not SAME_IN_BOTH.match(word)
        for pattern, other in SPELLINGS
        if re.fullmatch(pattern, word)
    }
    return sorted(found - words)


def _moved(markdown: str, old: Path, new: Path) -> str:
    """A text that stood in the folder ``old``, whose links lead to the same files from the folder ``new``."""

    def moved(match: re.Match[str]) -> str:
        target = (old / match[2]).resolve()
        if not target.exists():
            return match[0]
        return f"[{match[1]}]({os.path.relpath(target, new)}{match[3] or ''})"

    return LINK.sub(moved, markdown)
