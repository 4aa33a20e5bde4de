"""Ask the search of the built documentation site, as a reader does who types into its search box.

    mkdocs build -d /tmp/site
    python tools/search_site.py /tmp/site                 the questions of the FAQ, and the first three hits of each
    python tools/search_site.py /tmp/site "two gpus"      these words

Needs playwright and Chromium.  Exit code 1: a question of the FAQ isn't among its first three hits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

FIRST = 3
"""Hits that a reader looks at."""
FAQ = "get-started/faq/"
QUESTIONS = {
    "pretrained checkpoint": "guides/pre-trained/",
    "two gpus": "guides/many-scenarios/",
    "memory columns": "concepts/memory/",
    "cite": "project/cite/",
    "night charger": "guides/nights-and-batteries/",
    "stop early": "concepts/evaluation/",
    "hugging face": "guides/hugging-face-data/",
    "clients that don't fit": FAQ,
    "flower results equal": "evidence/other-programs/",
    "flower model": "get-started/coming-from-flower/",
    "differential privacy": "evidence/limits/",
    "split learning": "evidence/limits/",
    "central training": FAQ,
    "data cap": "guides/nights-and-batteries/",
    "how large": FAQ,
    "microcontroller": FAQ,
    "quantize": "evidence/fine-tuning-costs/",
    "quantise": "evidence/fine-tuning-costs/",
    "centralized": FAQ,
}
"""Words that people type, and the page, beside the FAQ, that answers them."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about requests."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served while the context lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def hits(site: Path, queries: Sequence[str], first: int = FIRST) -> dict[str, list[str]]:
    """The pages and sections that the site's search offers first for each query."""
    from playwright.sync_api import sync_playwright

    chromium = next((path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(path).exists()), None)
    found: dict[str, list[str]] = {}
    with served(site) as address, sync_playwright() as program:
        browser = program.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        for query in queries:
            page.goto(f"{address}?q={query.replace(' ', '%20')}")
            page.wait_for_function(
                "/\\d+ match|No match/.test(document.querySelector('.md-search-result__meta')?.textContent)",
                timeout=60_000,
            )
            page.wait_for_timeout(300)  # the list is drawn after its heading
            links = page.eval_on_selector_all(
                ".md-search-result__item", "found => found.map(each => each.querySelector('a').href)"
            )
            found[query] = [_place(link, address) for link in links[:first]]
        browser.close()
    return found


def answered(query: str, offered: Sequence[str]) -> bool:
    """Whether one of the offered pages is one that answers a question of the FAQ."""
    return any(link.partition("#")[0] in (FAQ, QUESTIONS[query]) for link in offered)


def _place(link: str, address: str) -> str:
    page, _, section = link.removeprefix(address).partition("#")
    return page.partition("?")[0] + (f"#{section.partition('?')[0]}" if section else "")


def main(words: Sequence[str] | None = None) -> int:
    """Print the first hits of each query."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("query", nargs="*")
    given = parser.parse_args(words)
    missed = 0
    for query, offered in hits(given.site, given.query or [*QUESTIONS]).items():
        good = query not in QUESTIONS or answered(query, offered)
        missed += not good
        print(f"{'' if good else 'MISSED '}{query}: {', '.join(offered) or 'nothing'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
