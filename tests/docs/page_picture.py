"""Makes docs/page.png: the gateway's page before a real cluster that answers requests.

python -m tests.docs.page_picture
"""

import sys
import threading
import time
from itertools import count

import httpx
from playwright.sync_api import expect, sync_playwright

from tests.docs.blocks import ROOT
from tests.page.browser import browser_arguments, find_browser
from tests.processes import cluster_process

TARGET = ROOT / "docs" / "page.png"
_SIZE = {"width": 1280, "height": 640}
_BUSY_S = 100
_QUESTIONS = 5


def main() -> None:
    executable = find_browser()
    if executable is None:
        sys.stderr.write(f"{TARGET.relative_to(ROOT)} stays as it is: no browser was found\n")
        return
    ended = threading.Event()
    with (
        cluster_process(workers=3, arguments=("--http-port", "0"), secured=False) as cluster,
        sync_playwright() as playwright,
    ):
        url = cluster.ready["http_url"]
        asking = [
            threading.Thread(target=_ask, args=(url, number, ended)) for number in range(_QUESTIONS)
        ]
        for thread in asking:
            thread.start()
        browser = playwright.chromium.launch(executable_path=executable, args=browser_arguments())
        page = browser.new_page(
            viewport=_SIZE,  # type: ignore[arg-type]
            color_scheme="dark",
            device_scale_factor=1.5,
        )
        page.goto(f"{url}/#machines")
        expect(page.locator("tbody tr")).to_have_count(3)
        time.sleep(_BUSY_S)
        page.screenshot(path=TARGET)
        browser.close()
        ended.set()
        for thread in asking:
            thread.join()
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}\n")


def _ask(url: str, client: int, ended: threading.Event) -> None:
    """Ask one question after another."""
    for number in count():
        if ended.is_set():
            return
        question = f"Tell me a story about lighthouse {number} of keeper {client}."
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 150}
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).raise_for_status()


if __name__ == "__main__":
    main()
