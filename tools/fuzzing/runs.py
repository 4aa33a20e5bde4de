"""Hostile run directories: finished, interrupted and compared runs with files changed, removed, linked or swapped."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import edgefl
from fuzzing.case import FOLDER, Case, Content, Odd
from fuzzing.scenarios import TINY
from fuzzing.texts import odd_files, rewritten
from fuzzing.values import mutated

Files = dict[str, bytes]

NEW = ("run/writer.lock", "run/.partial-result.json", "run/compare.json", "run/x", "run/checkpoints", "run/files.json",
       "run/checkpoints/round-000009", "run/kept")  # fmt: skip
"""What a run doesn't have, and may have to cope with."""

NAME = re.compile(rb'"(?:device|link|kind|profile)": ?"([^"]+)"')
NAMES = ("\x1b[31mred", "\x9b2J", "\x1b]0;title\x07", "a\u202eb", "a\u2028b", "a\nb", "a\tb", "=1+1", "@x", "[red]x")
"""What a stranger may have named a device."""


class _Stop(Exception):
    """Ends a run after its first round."""


def _interrupt(event: str, facts: Mapping[str, Any]) -> None:
    if event == "round" and facts["round"] == 2:
        raise _Stop


@cache
def made() -> list[Files]:
    """Files of good runs: finished, interrupted after a round, without training, and a comparison."""
    small = {**TINY, "data": {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 40, "test": 40},
             "training": {"batch": 8}}  # fmt: skip
    del small["edgefl"]
    untrained = {**small, "training": {"mode": "none"}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        edgefl.run(small, out=folder / "finished")
        try:
            edgefl.run(small, out=folder / "interrupted", on_progress=_interrupt)
        except _Stop:
            pass
        edgefl.run(untrained, out=folder / "untrained")
        edgefl.run({**untrained, "compare": {"seed": [1, 2]}}, out=folder / "compared")
        return [
            {f"run/{path.relative_to(each)}": path.read_bytes() for path in sorted(each.rglob("*")) if path.is_file()}
            for each in sorted(folder.iterdir())
        ]


def runs() -> st.SearchStrategy[Case]:
    """Run directories; the good ones that they come from are made first."""
    made()
    return _runs()


@st.composite
def _runs(draw: st.DrawFn) -> Case:
    """A run's folder in which one or two files were changed; beside it a folder that must stay as it is."""
    good = draw(st.sampled_from(made()))
    files: dict[str, Content] = dict(good)
    names = []
    for _ in range(draw(st.integers(1, 2))):
        rows = [name for name in sorted(good) if name.endswith(".jsonl") and NAME.search(good[name])]
        name = draw(st.sampled_from(sorted(good)))
        how = draw(st.sampled_from(("text", "text", "json", "json", "json", "away", "odd", "swapped", "new",
                                    "named", "named")))  # fmt: skip
        content: Content | None = good[name]
        if how == "text":
            content = draw(rewritten(good[name]))
        elif how == "json":
            content = draw(_json_mutated(name, good[name]))
        elif how == "named" and rows:  # a stranger's name in every file, as a run of a stranger's profile has it
            name = draw(st.sampled_from(rows))
            old = draw(st.sampled_from(sorted(set(NAME.findall(good[name])))))
            new = json.dumps(draw(st.sampled_from(NAMES)), ensure_ascii=False).encode()
            plain = {each: content for each, content in files.items() if isinstance(content, bytes)}
            files |= {each: content.replace(b'"%s"' % old, new) for each, content in plain.items()}
            names += [each for each in good if b'"%s"' % old in good[each]]
            continue
        elif how == "away":
            content = None
        elif how == "odd":
            content = draw(odd_files)
        elif how == "swapped":
            other = draw(st.sampled_from(made()))
            content = other[draw(st.sampled_from(sorted(other)))]
        else:
            name = draw(st.sampled_from(NEW))
            content = draw(st.one_of(odd_files, st.sampled_from((b"", b"{}", b"[]", b"\x00"))))
            if any(each.startswith(f"{name}/") for each in files):
                continue
        files.pop(name, None)
        if content is not None and not any(name.startswith(f"{each}/") for each in files):
            files[name] = content
            names.append(name)
    files = {"run": Odd(FOLDER), **files, "outside/kept.txt": b"kept\n"}
    return Case("runs", files, tuple(dict.fromkeys(names)))


@st.composite
def _json_mutated(draw: st.DrawFn, name: str, content: bytes) -> bytes:
    """A JSON or JSON Lines file with mutated data; another file with its bytes changed."""
    if not name.endswith((".json", ".jsonl")):
        return draw(rewritten(content))
    lines = content.splitlines(keepends=True) if name.endswith(".jsonl") else [content]
    if not lines:
        return draw(rewritten(content))
    i = draw(st.integers(0, len(lines) - 1))
    data = draw(mutated(json.loads(lines[i])))
    text = json.dumps(data, indent=None if name.endswith(".jsonl") else 2)
    return b"".join([*lines[:i], text.encode("utf-8", "surrogatepass") + b"\n", *lines[i + 1 :]])
