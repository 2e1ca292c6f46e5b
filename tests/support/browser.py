"""A real Chromium on the gateway's page, and what it complains about.

The browser is Debian's package `chromium`; `playwright` drives it, and downloads
none of its own. Where either is missing the tests are skipped and say so.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Request

__all__ = ["FAILED_LOADS", "ChatPage", "chat_page", "chromium", "milliseconds_of"]

_WAIT_MS: Final = 15_000
_MINUS: Final = "\N{MINUS SIGN}"
# What is said of an answer that a test wants to fail, or of a connection that it cuts.
FAILED_LOADS: Final = "Failed to load resource"

_LOW_CONTRASTS: Final = """() => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const parse = (text) => {
        const parts = text.match(/[\\d.]+/g).map(Number);
        const [red, green, blue] = parts.map((part) => linear(text.startsWith("rgb") ? part / 255 : part));
        return { alpha: parts[3] ?? 1, light: 0.2126 * red + 0.7152 * green + 0.0722 * blue };
    };
    const behind = (element) => {
        const colour = parse(getComputedStyle(element).backgroundColor);
        return colour.alpha > 0 ? colour.light : behind(element.parentElement);
    };
    const low = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const [text, element] = [texts.currentNode.data.trim(), texts.currentNode.parentElement];
        if (!text || !element.checkVisibility() || element.closest(":disabled, .unseen, noscript")) continue;
        const lights = [parse(getComputedStyle(element).color).light, behind(element)];
        const ratio = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
        if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${element.className || element.localName}: ${text}`);
    }
    return low;
}"""
_TOO_WIDE: Final = """() => ["html", "#chat", "#compare-view", "#settings", "header", "#composer"].filter((name) => {
    const element = document.querySelector(name);
    return element.scrollWidth > element.clientWidth;
})"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium for the length of the block; the test is skipped where it is missing."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium; install it (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as driver:
        # Root needs --no-sandbox, and small containers have a small /dev/shm.
        arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True, eq=False)
class ChatPage:
    """The page in one tab. `problems` are what the console, the network and the policy complained about."""

    page: Page
    origin: str
    problems: list[str] = field(default_factory=list)

    def find(self, selector: str, *, text: str | None = None) -> Locator:
        """Return the elements that match, and have `text` in them."""
        return self.page.locator(selector, has_text=text)

    @property
    def turn(self) -> Locator:
        """The newest question with its answer."""
        return self.find(".turn").last

    @property
    def text(self) -> str:
        """What the newest answer shows."""
        return str(self.turn.locator(".text").evaluate("box => [...box.children].map(b => b.textContent).join('')"))

    def figure(self, name: str, turn: Locator | None = None) -> str:
        """Return a figure beside the newest answer."""
        value = (turn or self.turn).locator(f"[data-figure={name}]")
        return str(value.evaluate("value => value.firstChild.textContent"))

    def milliseconds(self, name: str, turn: Locator | None = None) -> float:
        """Return such a figure as a number."""
        return milliseconds_of(self.figure(name, turn))

    def send(self, text: str) -> None:
        """Send a message with the Enter key."""
        self.find("#prompt").fill(text)
        self.find("#prompt").press("Enter")

    def ask(self, text: str) -> str:
        """Send a message, wait for the end of its answer and return what it shows."""
        self.send(text)
        self.wait_for_end()
        return self.text

    def wait_for_text(self, text: str) -> None:
        """Wait until the newest answer has this in it."""
        self.turn.locator(".text").get_by_text(text).first.wait_for(timeout=_WAIT_MS)

    def wait_for_end(self) -> None:
        """Wait until no answer comes any more."""
        self.find("#send:not(.is-stop)").wait_for(timeout=_WAIT_MS)

    def has_focus(self, selector: str) -> bool:
        """Return whether the keyboard types into this element."""
        return bool(self.find(selector).evaluate("field => field === document.activeElement"))

    def run(self, script: str, argument: Any = None) -> Any:
        """Run a script in the page."""
        return self.page.evaluate(script, argument)

    def hard_to_read(self) -> list[str]:
        """Return the texts in sight whose contrast is below what WCAG asks for at level AA."""
        return list(self.run(_LOW_CONTRASTS))

    def too_wide(self) -> list[str]:
        """Return what would have to be scrolled to the side."""
        return list(self.run(_TOO_WIDE))


def milliseconds_of(words: str) -> float:
    """Return what the page shows as a time."""
    found = re.fullmatch(rf"([+±{_MINUS}]?)([\d.]+) (ms|s)", words.strip())
    assert found, f"{words!r} is no time"
    sign, number, unit = found.groups()
    return float(number) * (1000 if unit == "s" else 1) * (-1 if sign == _MINUS else 1)


@contextmanager
def chat_page(
    browser: Browser, url: str, *, allows: Sequence[str] = (), has_models: bool = True, script: str = "", **context: Any
) -> Iterator[ChatPage]:
    """Open the page at `url` in a profile of its own; at the end it must have complained of nothing but `allows`.

    `script` runs before the page's own.
    """
    context.setdefault("viewport", {"width": 1280, "height": 900})
    with browser.new_context(**context) as profile:
        profile.set_default_timeout(_WAIT_MS)
        tab = ChatPage(profile.new_page(), url.rstrip("/"))
        tab.page.on("console", lambda said: tab.problems.append(f"console: {said.text}"))
        tab.page.on("pageerror", lambda error: tab.problems.append(f"exception: {error}"))

        def look(request: Request) -> None:
            if not request.url.startswith(f"{tab.origin}/"):
                tab.problems.append(f"request to elsewhere: {request.url}")

        tab.page.on("request", look)
        tab.page.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective));"
            + script
        )
        tab.page.goto(f"{tab.origin}/")
        if has_models:
            tab.find("#model option").first.wait_for(state="attached")
        yield tab
    unexpected = [problem for problem in tab.problems if not any(allowed in problem for allowed in allows)]
    assert not unexpected
