"""The questions that people ask are among the first hits of the site's own search."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import search_site

ROOT = Path(__file__).parents[2]


def test_every_question_is_answered_by_pages_that_exist() -> None:
    pages = {*search_site.QUESTIONS.values(), search_site.FAQ}
    assert all((ROOT / "docs" / f"{page.rstrip('/')}.md").is_file() for page in pages)
    headings = re.findall("^## .*", (ROOT / "docs/get-started/faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) == 19 and all(heading.endswith("?") for heading in headings)
    assert search_site.answered("cite", ["reference/devices/", "project/cite/#cite-edgefl"])
    assert not search_site.answered("cite", ["reference/devices/"])


@pytest.mark.slow(smaller="test_every_question_is_answered_by_pages_that_exist")
@pytest.mark.skipif(not shutil.which("chromium"), reason="the search runs in a browser")
def test_every_question_is_among_the_first_three_hits(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(ROOT / "mkdocs.yml"), "-d", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT)
    found = search_site.hits(tmp_path, [*search_site.QUESTIONS])
    assert not {query: hits for query, hits in found.items() if not search_site.answered(query, hits)}
