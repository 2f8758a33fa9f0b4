"""What no page may do, and what a page did of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from playwright.sync_api import Page

POLICY = """addEventListener("securitypolicyviolation",
  (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"""
REFUSED = "the server responded with a status of 4"
"""The console's word for an answer that is a sentence why not."""


@dataclass
class Watch:
    """What a page did that no page may do.

    Attributes:
        host: whom it may ask.
        faults: what it did, in words.
        foreseen: patterns of what this test provokes.
    """

    host: str
    faults: list[str] = field(default_factory=list)
    foreseen: list[str] = field(default_factory=list)

    def over(self, page: Page) -> None:
        page.on("request", lambda request: self._asked(request.url))
        page.on("console", lambda said: said.type == "error" and self.faults.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"page error: {error}"))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("crash", lambda _: self.faults.append("the page crashed"))
        page.add_init_script(POLICY)

    def foresee(self, *patterns: str) -> None:
        self.foreseen.extend(patterns)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.host, "data:", f"blob:{self.host}")):
            self.faults.append(f"asked another host: {url}")

    @property
    def unforeseen(self) -> list[str]:
        return [fault for fault in self.faults if not any(re.search(pattern, fault) for pattern in self.foreseen)]
