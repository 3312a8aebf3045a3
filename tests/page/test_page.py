"""The page of a real gateway, in front of a real cluster of two workers."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from playwright.sync_api import Page, expect

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process, make_key
from tests.models import make_tiny_model
from tests.page.conftest import OpenPage
from tests.processes import ClusterProcess, cluster_process, wait_for

SECURED = False  # `cluster up` itself reads the configuration file

_QUESTION = "Tell me a story"
_WORKERS = ("worker-1", "worker-2")
_VIEWS = ("machines", "models", "requests", "sessions", "controllers", "rollout", "log", "chat")
Keys = dict[str, str]


@pytest.fixture(scope="module")
def cluster(
    roomy_model: Path, demo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcess]:
    """Of the models `long`, whose answers do not end, `short`, and `demo`, which is not loaded."""
    folder = tmp_path_factory.mktemp("page")
    short = make_tiny_model(folder / "short")
    models = {"long": roomy_model, "short": short, "demo": demo_folder}
    settings = {
        "skills": {"chat": ["long", "short"]},
        "models": {name: {"path": str(path)} for name, path in models.items()},
        "worker": {
            "pre_warming": {"models": [{"model": "long"}, {"model": "short"}]},
            "engines": {"restart_delay_ms": 10},
        },
    }
    config = folder / "cluster.yaml"
    config.write_text(yaml.safe_dump(settings))
    with cluster_process(workers=2, arguments=("--config", str(config))) as running:
        yield running


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.yaml"


@pytest.fixture(scope="module")
def keys(keys_file: Path) -> Keys:
    return {"admin": make_key(keys_file, "admin", "--admin"), "ada": make_key(keys_file, "ada")}


@pytest.fixture(scope="module")
def served(cluster: ClusterProcess, keys: Keys, keys_file: Path) -> Iterator[GatewayProcess]:
    with gateway_process(cluster.url, "--keys-file", str(keys_file)) as process:
        yield process


@pytest.fixture
def url(served: GatewayProcess, keys: Keys) -> str:
    """Of the gateway, once both workers have what they shall have."""

    def ready() -> bool:
        headers = {"authorization": f"Bearer {keys['admin']}"}
        with httpx.stream(
            "GET", f"{served.url}/cluster/events?views=models", headers=headers, timeout=20
        ) as events:
            for line in events.iter_lines():
                if line.startswith("data: ") and '"rows"' in line:
                    models = json.loads(line.removeprefix("data: "))["rows"]
                    warm = {row["id"]: row["states"]["warm"] for row in models}
                    return warm.get("long") == warm.get("short") == len(_WORKERS)
        return False

    wait_for(ready, "both workers are warm")
    return served.url


def _sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("Live")


def _ask(page: Page, model: str) -> None:
    page.get_by_label("Model or skill").select_option(model)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Your message").fill(_QUESTION)
    page.keyboard.press("Enter")


def _length(page: Page) -> int:
    return len(page.locator(".message.assistant .prose").inner_text())


def test_an_answer_streams_to_its_end(url: str, keys: Keys, open_page: OpenPage) -> None:
    with open_page(f"{url}/#chat") as page:
        _sign_in(page, keys["admin"])
        expect(page.locator("#model")).to_have_value("chat")
        _ask(page, "short")
        expect(page.get_by_role("button", name="Retry")).to_be_visible()
        answer = page.locator(".message.assistant")
        expect(answer.locator(".facts")).to_contain_text("tokens/s")
        assert _length(page) > 100
        assert answer.get_attribute("data-state") == "done"


def test_an_answer_moves_when_its_worker_is_killed(
    url: str, keys: Keys, open_page: OpenPage, cluster: ClusterProcess
) -> None:
    with open_page(f"{url}/#chat") as page:
        _sign_in(page, keys["admin"])
        _ask(page, "long")
        facts = page.locator(".message.assistant .facts")
        expect(facts).to_contain_text("on worker-")
        first = next(name for name in _WORKERS if name in facts.inner_text())
        (second,) = set(_WORKERS) - {first}
        cluster.member(first).kill()
        expect(page.locator(".message .moved")).to_have_text(f"moved from {first} to {second}")
        expect(facts).to_contain_text(f"on {second}")
        before = _length(page)
        page.wait_for_function(
            "before => document.querySelector('.prose').innerText.length > before", arg=before
        )
        page.get_by_label("Your message").press("Escape")
        expect(page.locator(".failure")).to_have_text("Stopped.")
        page.evaluate("location.hash = 'log'")
        expect(page.locator("tbody")).to_contain_text(first)


def test_a_model_is_loaded_with_progress_and_unloaded(
    url: str, keys: Keys, open_page: OpenPage
) -> None:
    with open_page(f"{url}/#models") as page:
        _sign_in(page, keys["admin"])
        load = page.get_by_role("button", name="Load demo on worker-1", exact=True)
        load.click()
        place = page.locator(".placements li").filter(
            has=page.get_by_role("button", name="demo on worker-1", include_hidden=True)
        )
        expect(place.get_by_role("progressbar")).to_be_visible()
        page.get_by_role("button", name="Unload demo on worker-1").click()
        page.get_by_role("dialog").get_by_role("button", name="Unload").click()
        expect(page.get_by_role("status").filter(has_text="worker-1 unloaded demo")).to_be_visible()
        expect(load).to_be_visible()


def test_a_request_is_cancelled(url: str, keys: Keys, open_page: OpenPage) -> None:
    with open_page(f"{url}/#chat") as page:
        _sign_in(page, keys["admin"])
        _ask(page, "long")
        expect(page.locator(".message.assistant .facts")).to_contain_text("on worker-")
        page.evaluate("location.hash = 'requests'")
        row = page.locator("tbody tr").filter(has_text="long")
        expect(row).to_contain_text("running")
        row.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("No request at the moment")).to_be_visible()
        page.evaluate("location.hash = 'chat'")
        expect(page.get_by_role("button", name="Retry")).to_be_visible()
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_a_key_without_rights_gets_no_order_through(
    url: str, keys: Keys, open_page: OpenPage
) -> None:
    with open_page(url) as page:
        _sign_in(page, keys["ada"])
        expect(page.get_by_role("navigation").get_by_role("link")).to_have_count(2)
        expect(page.locator("h1")).to_have_text("Chat")
        page.evaluate("location.hash = 'models'")
        expect(page.get_by_role("button", name="Unload")).to_have_count(0)
        for order in (
            {"order": "unload", "model": "long", "worker": "worker-1"},
            {"order": "cancel", "client": "admin", "request_id": "req-1"},
            {"order": "roll_back"},
        ):
            status = page.evaluate(
                """async ([order, key]) => (await fetch('/cluster/orders', {
                  method: 'POST', body: JSON.stringify(order),
                  headers: {'content-type': 'application/json', authorization: `Bearer ${key}`},
                })).status""",
                [order, keys["ada"]],
            )
            assert status == 403, order


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_every_view_is_shown(
    url: str, keys: Keys, open_page: OpenPage, screenshots: Path, width: int, scheme: str
) -> None:
    size = {"width": width, "height": 900}
    with open_page(url, viewport=size, color_scheme=scheme) as page:
        _sign_in(page, keys["admin"])
        for view in _VIEWS:
            page.evaluate("view => location.hash = view", view)
            shown = page.locator("tbody tr, .empty:not([hidden])")
            expect(shown.first).to_be_visible()
            page.screenshot(path=screenshots / f"{view}-{width}-{scheme}.png")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
