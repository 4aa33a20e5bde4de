"""How long the page of edgefl sweep --page takes to follow a slider, in Chromium.

    edgefl sweep SCENARIO --page page.html
    python tools/page_speed.py page.html [--moves 60] [--width 1280]

Needs playwright and the system's Chromium.  Prints a table in Markdown: milliseconds of a move of each main slider, the
script's alone and until the frame has ended, in the first cell and in the last one that can run; and the slowest move
as a ratio to 100 ms, which a page of 100,000 clients may take.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from measuring import spread

MOVES = """async ([id, moves]) => {
  const range = document.getElementById(id), root = document.getElementById("explore"), times = [];
  for (let i = 0; i < moves; i++) {
    range.value = 100 + Math.round(i * 800 / moves);
    const began = performance.now();
    range.dispatchEvent(new Event("input"));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    times.push([Number(root.dataset.milliseconds), performance.now() - began]);
  }
  range.value = 0;
  range.dispatchEvent(new Event("input"));
  return times;
}"""
LAST = """() => {
  for (const group of document.querySelectorAll("#explore fieldset")) {
    [...group.querySelectorAll("input:not(:disabled)")].at(-1).click();
  }
}"""
ALLOWED = 100.0


def measured(page: Any, slider: str, moves: int) -> str:
    """The rest of a row: script, whole frame, the slowest script, and its ratio to what is allowed."""
    times = page.evaluate(MOVES, [slider, moves])
    script, frame = ([each[i] for each in times] for i in (0, 1))
    return f"{spread(script)} | {spread(frame)} | {max(script):.0f} | {max(script) / ALLOWED:.2f}"


def main() -> None:
    """Print the table of the page that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--width", type=int, default=1280)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": given.width, "height": 900})
        page.goto(given.page.resolve().as_uri())
        page.wait_for_selector("#explore[data-milliseconds]")
        print("| cell | slider | script, ms | until the frame has ended, ms | slowest script, ms | of 100 ms |")
        print("|---|---|---|---|---|---|")
        for cell in ("first", "last"):
            if cell == "last":
                page.evaluate(LAST)
            for slider in ("explore-memory", "explore-share", "explore-deadline"):
                print(f"| {cell} | {slider.removeprefix('explore-')} | {measured(page, slider, given.moves)} |")
        browser.close()


if __name__ == "__main__":
    main()
