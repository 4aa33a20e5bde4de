"""What the pages have in common: Markdown, and edgefl's own parts by name."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from edgefl.models.plain import tower_of

COMMAND = "python tools/pages.py"
PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
NOTE = f"<!-- Written by `{COMMAND}` from the code: change the code, then run it again. -->"


def page(title: str, parts: Iterable[str]) -> str:
    """A page with its title, the note that it is generated, and its parts."""
    return "\n\n".join([f"# {title}", NOTE, *(part.strip("\n") for part in parts)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: Sequence[str] = ()) -> str:
    """A Markdown table; ``|`` and line breaks in cells are replaced.  ``align`` is its second line, left by default."""
    lines = [head, align or ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def code(value: Any) -> str:
    """A value as YAML on one line, in a code span."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    return f"`{text.strip().removesuffix('...').strip()}`"


def listed(words: Sequence[str], last: str = "or") -> str:
    """Words as an enumeration: ``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def sentence(text: str, names: Container[str] = ()) -> str:
    """A description for a table cell: mappings and paths in code spans, a capital first letter, no full stop.

    A first word that is one of ``names`` keeps its lower case.
    """
    spans = re.split(r"(`[^`]*`)", text)
    whole = "".join(span if span.startswith("`") else _marked(span) for span in spans).removesuffix(".")
    first = re.match(r"[a-z]+(?=[ ,';:-])", whole)
    return whole[:1].upper() + whole[1:] if first and first[0] not in names else whole


def _marked(text: str) -> str:
    """The text with mappings in braces, and dotted or underscored names, in code spans."""
    spans, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        if letter == "{":
            if not depth:
                spans.append(paths(text[start:index]))
                start = index
            depth += 1
        elif letter == "}":
            depth -= 1
            if not depth:
                spans.append(f"`{text[start : index + 1]}`")
                start = index + 1
    return "".join([*spans, paths(text[start:])])


def paths(text: str) -> str:
    """The text with dotted and underscored names, environment variables and options in code spans."""
    dotted = r"[a-z]{2,}(?:[._][a-z_]{2,}|_[a-z]\b)+(?:\.\d+)?(?:=[\w.-]+)?"
    name = rf"{dotted}|\$[A-Z_]+(?:/[A-Z]+)?|--[a-z][a-z-]+(?: [A-Z]+\b)?"
    return re.sub(rf"(?<![\w`/<])(?:{name})(?![\w`/>])", lambda match: f"`{match[0]}`", text)


def prose(text: str, names: Container[str]) -> str:
    """A docstring as Markdown: its code spans, those of ``names`` linked to sections of the page."""
    text = re.sub(r"``(.+?)``", r"`\1`", inspect.cleandoc(text), flags=re.DOTALL)
    text = re.sub(r"<(\w+)>", lambda match: match[1].upper(), text)
    return linked(re.sub(r"(?<=\.)  (?=\S)", " ", text), names)


def anchor(heading: str) -> str:
    """What a link to a heading ends with."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def oneline(text: str) -> str:
    """A docstring as Markdown for a table's cell."""
    return " ".join(prose(text, ()).split())


def linked(text: str, names: Container[str]) -> str:
    """Markdown whose code spans that are one of ``names`` lead to the section of that name."""
    return re.sub(r"`(\w+)`", lambda m: f"[`{m[1]}`](#{m[1].lower()})" if m[1] in names else m[0], text)


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring on one line, as Markdown."""
    paragraph = inspect.cleandoc(text or "").split("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def registered(group: str) -> dict[str, Any]:
    """edgefl's own entry points of a group by name, in the order of pyproject.toml."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    targets = {}
    for name, target in project["entry-points"][f"edgefl.{group}"].items():
        module, attribute = target.split(":")
        found = getattr(importlib.import_module(module), attribute)
        targets[name] = tower_of(name, found) if group == "towers" else found
    return targets
