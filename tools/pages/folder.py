"""Pages of one folder of docs/reference: their links, and the index that leads to them.

Texts of the code have links as pages of docs/reference have them: ``../concepts/memory.md``, ``records.md``, or
``#stop`` for a heading that may stand on any page of the folder.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tools.pages.markdown import anchor

DOCS = Path(__file__).resolve().parents[2] / "docs"
RELATIVE = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
OWN = re.compile(r"\]\(#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def with_links(texts: Mapping[str, str]) -> dict[str, str]:
    """The pages of a folder by name, with links that lead from there.

    A link to ``#NAME`` leads to the heading on the same page, else to the page of that name, else to the only page
    that has the heading.  Raises ValueError where no page has it, or several have.
    """
    headings = {name: {anchor(title) for title in HEADING.findall(FENCE.sub("", text))} for name, text in texts.items()}
    homes: dict[str, list[str]] = defaultdict(list)
    for name, anchors in headings.items():
        for each in anchors:
            homes[each].append(name)

    def resolved(name: str, target: str) -> str:
        if target in headings[name]:
            return f"](#{target})"
        if target in texts:
            return f"]({target}.md)"
        if len(homes[target]) != 1:
            raise ValueError(f"{name}: the link to #{target} leads to {homes[target] or 'no page'}")
        return f"]({homes[target][0]}.md#{target})"

    found = {}
    for name, text in texts.items():
        deeper = RELATIVE.sub(r"](../\1)", text)
        found[name] = OWN.sub(lambda match, name=name: resolved(name, match[1]), deeper)
    return found
