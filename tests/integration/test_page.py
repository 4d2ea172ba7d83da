"""The page in a real Chromium: a request streams, colours its tokens, and is compared."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from playwright import sync_api as playwright

from outrider.server.access import AuthLimits
from tests.support.server import listening, toy_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


def opened(browser: Any, url: str, **options: Any) -> tuple[Any, list[str]]:
    """A page, and what it has complained of."""
    page, said = browser.new_page(**options), []
    page.set_default_timeout(120_000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(url)
    return page, said


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_request_is_shown_token_by_token_and_compared(browser: Any, scheme: str) -> None:
    with toy_server() as server, listening(server.app) as url:
        page, said = opened(browser, url, color_scheme=scheme)
        page.fill("#prompt", "abcabcabcabc")
        page.fill("#max_tokens", "40")
        page.press("#prompt", "Control+Enter")
        page.locator("#status", has_text="done").wait_for()
        assert "identical output" in page.text_content("#verdict")
        fast = page.locator("#speculative .text span")
        assert fast.count() == 40
        kinds = {span.get_attribute("class").split()[0] for span in fast.all()}
        assert kinds <= {"draft", "correction", "bonus"}
        assert page.locator("#plain .text span.draft").count() == 0
        assert page.text_content("#speculative .text") == page.text_content("#plain .text")
        assert "rounds" in page.get_attribute("#rounds", "aria-label")
        page.locator("#server dd", has_text=re.compile("^80$")).wait_for()
        assert not said
        page.close()


def test_markup_in_texts_is_shown_as_it_is(browser: Any) -> None:
    markup = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    with toy_server() as server, listening(server.app) as url:
        page, said = opened(browser, url)
        page.fill("#prompt", markup)
        page.locator("summary").click()
        page.fill("#prediction", markup)
        page.fill("#max_tokens", "8")
        page.click("#go")
        page.locator("#status", has_text="done").wait_for()
        assert page.locator(".text img, .text script").count() == 0
        assert not said
        page.close()


def test_errors_are_shown_and_a_key_opens_the_server(browser: Any) -> None:
    with toy_server(access=AuthLimits(keys=("k",))) as server, listening(server.app) as url:
        page, _ = opened(browser, url)
        page.locator("#model", has_text="expected a valid key").wait_for()
        page.fill("#key", "k")
        page.locator("#model", has_text="toy on transformers").wait_for()
        page.fill("#prompt", "abc" * 3000)
        page.click("#go")
        page.locator("#status", has_text="context").wait_for()
        page.close()


def test_every_control_is_reached_by_the_keyboard_and_has_a_name(browser: Any) -> None:
    with toy_server() as server, listening(server.app) as url:
        page, _ = opened(browser, url)
        reached = []
        for _ in range(8):
            page.keyboard.press("Tab")
            reached.append(page.locator(":focus").evaluate("node => node.id || node.tagName"))
        assert reached == [
            *("prompt", "max_tokens", "temperature", "seed", "key", "beside", "SUMMARY", "go")
        ]
        names = page.locator("input, textarea, button").evaluate_all(
            "nodes => nodes.map(node => node.textContent || (node.labels[0] || {}).textContent)"
        )
        assert all(names)
        page.close()
