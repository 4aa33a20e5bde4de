"""A page that edgefl wrote, open in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def settle(page: Any) -> None:
    """Wait until a page has drawn what was asked of it: in its next frame, or when an opened table tells that it is."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")


class VisitedPage:
    """A page in the browser, and what it said and asked for."""

    wait = 120_000
    """Milliseconds that a busy machine may take for a step of the browser."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light", fragment: str = ""):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(self.wait)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url + fragment)

    def check(self) -> None:
        """Nothing was said, nothing but the file was asked for, and nothing is wider than the window."""
        assert not self.said
        asked = {url for url in self.asked if not url.startswith(("data:", "blob:"))}
        assert {url.partition("#")[0] for url in asked} == {self.url}
        width, seen = self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert width <= seen
