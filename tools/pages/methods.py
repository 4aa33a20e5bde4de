"""The table of concepts/methods.md: what each method's works say that travels, stays and is done by the server.

Each method is set up with its default options for clients with images, with texts and with both; its works are those of
the first round.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from edgefl.methods import Method
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Payload, Work
from tools.pages.markdown import anchor, capital, registered, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "methods.md"
SCENARIO: dict[str, Any] = {
    "edgefl": 1,
    "name": "methods",
    "data": {
        "source": "declared",
        "clients": {"image": 1, "text": 1, "image-text": 1},
        "samples": 32,
        "public": 20,
        "shapes": {"image": {"channels": 1, "size": 16, "classes": 4}, "text": {"vocabulary": 50, "classes": 4}},
    },
    "model": {
        "image": {"tower": "vit", "blocks": 2, "width": 32, "heads": 4, "patch": 8},
        "text": {"tower": "transformer", "blocks": 2, "width": 32, "heads": 4, "tokens": 8},
    },
    "schedule": {"name": "end-to-end", "rounds": 2},
    "training": {"mode": "none", "batch": 8},
}
HEAD = ("Method", "What it is", "Paper", "Down", "Up", "Stays on the client", "The server's own", "Clients")


def method_blocks() -> dict[str, str]:
    """The table of all methods."""
    text = PAGE.read_text(encoding="utf-8")
    families = re.findall(r"^- \[.*?\]\((methods/\w+\.md)\): (.*(?:\n  .*)*)", text, re.MULTILINE)
    rows = []
    for name, method in registered("methods").items():
        (page,) = (page for page, names in families if f"`{name}`" in names)
        rows.append((f"[`{name}`]({page}{_section(page, name)})", capital(method.summary), method.paper, *_works(name)))
    return {"methods": table(HEAD, rows)}


def _section(page: str, name: str) -> str:
    """The end of a link to a method's section on its page; empty if it has none."""
    text = (PAGE.parent / page).read_text(encoding="utf-8")
    headings = re.findall(rf"^## ((?:.*, )?{name}\b.*)$", text, re.MULTILINE)
    return f"#{anchor(headings[0])}" if headings else ""


def _works(name: str) -> tuple[str, ...]:
    """What travels down and up, what stays, what the server has, and who takes part."""
    method = _set_up(name)
    with torch.device("meta"):
        state = method.initial(1)
    kinds = [kind for kind in method.setting.kinds if method.participates(kind, 1)]
    works = [method.client_work(kind, 1) for kind in kinds]
    down = [_moved(method, work, payload, stays=False) for work in works for payload in work.down]
    up = [_moved(method, work, payload, stays=False) for work in works for payload in work.up]
    stays = [_moved(method, work, payload, stays=True) for work in works for payload in work.down]
    tables = {address.split("/")[1].split(".")[0] for address in state.tensors if address.startswith("table/")}
    own = ["a model"] if any(address.startswith("server/") for address in state.tensors) else []
    trains = [work for work in (*method.before(state, 1), *method.after(state, 1)) if any(p.train for p in work.passes)]
    server = [*own, *(f"`{each}`" for each in sorted(tables)), *(["trains"] if trains else [])]
    clients = "of one modality" if kinds else "none"
    if len(kinds) == len(method.setting.kinds):
        clients = "all"
    if method.tasks:
        clients += "; for " + ", ".join(f"`{task}`" for task in method.tasks)
    return _listed(down), _listed(up), _listed(stays), ", ".join(server) or "–", clients


def scenario_with(name: str) -> dict[str, Any]:
    """The scenario above with this method and the sections that it needs."""
    scenario = {**SCENARIO, "method": name}
    for section, fields in registered("methods")[name].needs.items():
        scenario[section] = fields if section == "model" else {**scenario.get(section, {}), **fields}
    return scenario


def _set_up(name: str) -> Method:
    method: Method = compose(load(scenario_with(name))).method
    return method


def _moved(method: Method, work: Work, payload: Payload, *, stays: bool) -> str:
    """The payload's name if some of it travels, or ``stays``; with "part of" for less than the whole model."""
    items = [item.name for item in payload.items if (item.name in work.keep) is stays]
    if not items:
        return ""
    whole = payload.name != "model" or len(items) == len(method.setting.kinds[work.kind].parameters())
    return f"`{payload.name}`" if whole else f"part of `{payload.name}`"


def _listed(words: list[str]) -> str:
    """The different words that aren't empty; where a kind has part of something, this is told for all."""
    return ", ".join(word for word in dict.fromkeys(words) if word and f"part of {word}" not in words) or "–"
