"""A browser for the tests of the page, and where their screenshots go."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.page.browser import NAMES, browser_arguments, find_browser
from tests.page.scripted import ScriptedGateway

_LIMIT_MS = 30_000
OpenPage = Callable[..., AbstractContextManager[Page]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """It ends with the module: while it is there, no other test of this process can run a loop."""
    executable = find_browser()
    if executable is None:
        reason = f"no browser: none of {', '.join(NAMES)}, and $CHROMIUM names none"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    expect.set_options(timeout=_LIMIT_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=browser_arguments())
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> OpenPage:
    """Of a fresh profile; closed at the end. It must end without errors and requests elsewhere.

    `url`, and `new_context`'s parameters.
    """

    @contextmanager
    def opened(url: str, **options: object) -> Iterator[Page]:
        context = browser.new_context(
            **({"viewport": {"width": 1440, "height": 900}} | options)  # type: ignore[arg-type]
        )
        page = context.new_page()
        page.set_default_timeout(_LIMIT_MS)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.extend(_violations(message)))
        page.on("request", lambda request: problems.extend(_elsewhere(request.url, url)))
        page.goto(url)
        yield page
        context.close()
        assert problems == []

    return opened


def _elsewhere(requested: str, url: str) -> list[str]:
    origin = url.partition("/#")[0]
    return [] if requested.startswith(origin) else [requested]


def _violations(message: ConsoleMessage) -> list[str]:
    """What the policy of the page forbade."""
    return [message.text] if "Content Security Policy" in message.text else []


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with ScriptedGateway() as scripted:
        yield scripted


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """A folder of the test's own, or the one that the variable PAGE_SCREENSHOTS names."""
    folder = Path(os.environ.get("PAGE_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
