"""Words that commands and options had before there were sixteen stand nowhere any more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = {
    "docs": ("*.md", "*.ipynb"),
    "scenarios": ("*.yaml",),
    "profiles": ("*.yaml",),
    "edgefl": ("*.py", "*.html", "*.js"),
    "tools": ("*.py",),
}
COMMANDS = (
    "aggregations|calibrate|check|cost-diff|data|devices (?:check|validate)|emulate|explore|figures|methods|metrics|"
    "models|optimizers|papers|policies|schedules|schema|selections|trace|verify"
)
REMOVED = {
    "a command": re.compile(rf"[`\"'\n$ ]edgefl ({COMMANDS})\b(?![:=])"),
    "an option": re.compile(r"--(json|csv|latex|markdown|output|resolved|orderings)\b(?!-)"),
    "a function": re.compile(
        r"edgefl\.(check|check_devices|cost_diff|emulate|explore|explore_devices|papers|profile_clients|trace|"
        r"write_figures|write_report)\b(?!\.)"
    ),
}
PROSE = re.compile(r"(how|what|that|because|which|where|and|so) edgefl (models|schedules|data|check)\b")


@pytest.mark.parametrize("kind", REMOVED)
def test_no_page_says_a_removed_word(kind: str) -> None:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    files += [path for folder, names in PLACES.items() for name in names for path in (ROOT / folder).rglob(name)]
    assert len(files) > 700
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if REMOVED[kind].search(PROSE.sub("", f" {line}"))
    ]
    assert found == []
