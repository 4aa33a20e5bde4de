"""The page ``scenarios.md``: the scenarios that come with edgefl; two of them are shown in full."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.pages.markdown import listed, page, table

FOLDER = Path(__file__).resolve().parents[2] / "scenarios"


def scenarios_page() -> str:
    """Every shipped scenario: its first comment, its clients, its method and schedule."""
    parts = [
        "The scenarios that come with edgefl are named without their folder and ending, as in the commands below. "
        "Their folder is `scenarios/` in a checkout. Those of `papers/` have the "
        "published hyper-parameters; where they train, the [data](data-sets.md) and a GPU are needed, and no "
        "published score was reproduced with them here.",
    ]
    for title, folder in (
        ("First steps", ""),
        ("Data of people", "edge-data"),
        ("Fine-tuning", "finetune"),
        ("Papers", "papers"),
        ("Open questions", "open"),
    ):
        rows = [_row(path) for path in sorted((FOLDER / folder).glob("*.yaml"))]
        parts += [f"## {title}", table(("Command", "What it asks", "Clients", "Method", "Schedule"), rows)]
    parts += [
        "## The tour",
        "Every section of a scenario, with what may stand there: `edgefl run tour`.",
        _shown("tour"),
    ]
    return page("Scenarios", parts)


def quickstart_block() -> dict[str, str]:
    """The quickstart as first-run.md shows it."""
    return {"quickstart": _shown("quickstart")}


def _shown(name: str) -> str:
    """A shipped scenario as a block of YAML, without the editor's line."""
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return "\n".join(["```yaml", *(line for line in lines if "yaml-language-server" not in line), "```"])


def _row(path: Path) -> tuple[str, ...]:
    text = path.read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    compared = data.get("compare", {})
    clients = ", ".join(f"{count:,} {kind}" for kind, count in data["data"]["clients"].items())
    name = path.relative_to(FOLDER).with_suffix("").as_posix()
    comment = first_comment(text)
    command = "profile" if "profile" in comment else "run"
    return (
        f"`edgefl {command} {name}`",
        comment,
        clients,
        _names(data.get("method", "fedavg"), compared, "method"),
        _names(data.get("schedule", "end-to-end"), compared, "schedule"),
    )


def first_comment(text: str) -> str:
    """The comment at the top of a scenario on one line, without the editor's line."""
    lines = text.splitlines()
    end = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    comment = " ".join(line.lstrip("# ") for line in lines[:end] if "yaml-language-server" not in line)
    return re.sub(r"  +", " ", comment)


def _names(own: object, compared: Mapping[str, Any], section: str) -> str:
    """The names of a section's value and of those that rows set, or of those that are compared."""
    rows = compared.get("rows", {}).values()
    values = compared.get(section) or [own, *(row[section] for row in rows if section in row)]
    names = [value["name"] if isinstance(value, dict) else value for value in values]
    return listed([f"`{name}`" for name in dict.fromkeys(names)], "and")
