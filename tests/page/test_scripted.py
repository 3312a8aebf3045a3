"""The page before a scripted gateway: what the stream may hold, keys, keyboard, accessibility."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page import rows
from tests.page.conftest import OpenPage
from tests.page.scripted import ScriptedGateway

VIEWS = (
    "machines", "models", "requests", "sessions", "controllers", "rollout", "log", "chat",
)  # fmt: skip
TITLES = {name: name.capitalize() for name in VIEWS} | {"rollout": "Roll-out"}
_AXE = Path(__file__).parents[1] / "node" / "node_modules" / "axe-core" / "axe.min.js"


def _go(page: Page, view: str) -> None:
    page.evaluate("view => location.hash = view", view)
    expect(page.locator("h1")).to_have_text(TITLES[view])
    if view not in ("chat", "rollout"):
        expect(page.locator("tbody tr").first).to_be_visible()


def _overflow(page: Page) -> int:
    """By how much the page, or what it scrolls, is wider than the window."""
    return int(
        page.evaluate(
            """() => Math.max(...['html', 'main'].map((name) => {
              const { scrollWidth, clientWidth } = document.querySelector(name);
              return scrollWidth - clientWidth;
            }))"""
        )
    )


def _ask(page: Page, question: str) -> None:
    expect(page.locator("#model")).not_to_have_value("")
    page.get_by_label("Your message").fill(question)
    page.keyboard.press("Enter")


@pytest.mark.parametrize("text", [rows.HOSTILE, rows.LONG], ids=["hostile", "long"])
def test_what_machines_models_and_clients_are_called_is_only_text(
    gateway: ScriptedGateway, open_page: OpenPage, text: str
) -> None:
    gateway.views = rows.hostile(text)
    gateway.answer = [{"reasoning_content": text[:9000]}, {"content": text[:9000]}]
    with open_page(gateway.url) as page:
        for view in VIEWS:
            _go(page, view)
            if view == "chat":
                _ask(page, text[:9000])
                expect(page.get_by_role("button", name="Retry")).to_be_visible()
            shown = page.inner_text("body")
            assert "\u202e" not in shown and "\x1b" not in shown, view
            if text == rows.HOSTILE and view not in ("chat", "controllers"):
                assert r"\u{202e}" in shown or "<img src=x" in shown, view
            assert len(shown) < (80_000 if view == "chat" else 40_000), view
            assert page.locator("#view img, #view script, #overview img").count() == 0, view
            titles = page.evaluate("[...document.querySelectorAll('[title]')].map(n => n.title)")
            assert all(len(title) <= 340 for title in titles), view
            assert "owned" not in page.title()
            assert _overflow(page) <= 0, view


def test_events_that_are_malformed_are_skipped(
    gateway: ScriptedGateway, open_page: OpenPage
) -> None:
    warnings: list[str] = []
    with open_page(gateway.url) as page:
        page.on("console", lambda message: warnings.append(message.text))
        expect(page.get_by_text("studio-0", exact=True)).to_be_visible()
        for line in ("{not json", "17", "null", '{"whole": true}', '{"rows": 3}', "{}"):
            gateway.push_line("machines", line)
        gateway.push("unheard-of", {"rows": []})
        gateway.push("machines", {"whole": False, "rows": [{"no": "key"}, 3], "removed": ["x"]})
        row = rows.machine(0, key="late", id="late-machine")
        gateway.push("machines", {"whole": False, "rows": [row], "removed": [], "total": 7})
        expect(page.get_by_text("late-machine", exact=True)).to_be_visible()
        expect(page.get_by_text("studio-0", exact=True)).to_be_visible()
    assert len([each for each in warnings if "event" in each]) == 6


def test_rows_change_come_and_go(gateway: ScriptedGateway, open_page: OpenPage) -> None:
    with open_page(gateway.url) as page:
        row = page.locator("tbody tr").filter(has_text="studio-0")
        expect(row).to_contain_text("ready")
        changed = rows.machine(0, state="draining")
        gateway.push("machines", {"whole": False, "rows": [changed], "removed": ["mini-1"]})
        expect(row).to_contain_text("draining")
        expect(page.get_by_text("mini-1", exact=True)).to_have_count(0)
        gateway.push("machines", rows.table([]))
        expect(page.get_by_text("No machine has joined yet")).to_be_visible()
        expect(page.get_by_text("worker --nats")).to_be_visible()


def test_the_page_connects_again_and_says_when(
    gateway: ScriptedGateway, open_page: OpenPage
) -> None:
    with open_page(gateway.url) as page:
        status = page.locator("#status")
        expect(status).to_have_text("Live")
        gateway.refuses = True
        gateway.drop()
        expect(page.get_by_text(re.compile("trying again in [124] s"))).to_be_visible()
        expect(page.get_by_text("studio-0", exact=True)).to_be_visible()
        gateway.refuses = False
        page.get_by_role("button", name="Try now").click()
        expect(status).to_have_text("Live")
        expect(page.get_by_text("trying again")).to_be_hidden()
        gateway.drop()
        expect(page.get_by_text("trying again")).to_be_visible()
        expect(status).to_have_text("Live")  # by itself


def test_only_what_is_shown_is_asked_for(gateway: ScriptedGateway, open_page: OpenPage) -> None:
    with open_page(gateway.url) as page:
        for view in ("machines", "models", "controllers", "log"):
            _go(page, view)
        page.go_back()
        expect(page.locator("h1")).to_have_text("Controllers")
        assert page.title() == "Controllers · MLX cluster"
    asked = [sorted(views) for views in gateway.connections]
    for views in (["machines"], ["models"], [], ["log"]):
        assert sorted([*views, "overview"]) in asked
    assert max(map(len, asked)) == 2


def test_a_key_is_asked_for_stored_and_forgotten(
    gateway: ScriptedGateway, open_page: OpenPage
) -> None:
    gateway.key = "sk-right"
    with open_page(gateway.url) as page:
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("this key is not known")
        page.get_by_label("API key").fill("sk-wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_label("API key")).to_have_value("")
        page.get_by_label("API key").fill("sk-right")
        page.keyboard.press("Enter")
        expect(page.get_by_text("studio-0", exact=True)).to_be_visible()
        assert "sk-" not in page.url
        assert "sk-right" in str(page.evaluate("JSON.stringify({...sessionStorage})"))
        assert "sk-right" not in str(page.evaluate("JSON.stringify({...localStorage})"))
        page.reload()
        expect(page.get_by_text("studio-0", exact=True)).to_be_visible()
        _sign_out(page)
        page.get_by_label("API key").fill("sk-right")
        page.get_by_label("Remember on this computer").check()
        page.get_by_role("button", name="Connect").click()
        expect(page.get_by_text("studio-0", exact=True)).to_be_visible()
        assert "sk-right" in str(page.evaluate("JSON.stringify({...localStorage})"))
        _go(page, "chat")
        page.get_by_label("System prompt").fill("a secret")
        page.wait_for_function("() => JSON.stringify({...localStorage}).includes('secret')")
        _sign_out(page)
        page.keyboard.press("Escape")
        expect(page.locator("#status")).to_have_text("Without a key nothing is shown")
        stored = str(page.evaluate("JSON.stringify({...localStorage})"))
        assert "sk-" not in stored and "a secret" not in stored
        page.get_by_role("button", name="Try again").click()
        expect(dialog).to_be_visible()


def _sign_out(page: Page) -> None:
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("dialog").get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()


def test_without_keys_no_order_is_offered(gateway: ScriptedGateway, open_page: OpenPage) -> None:
    gateway.views["session"] = rows.session("read")
    with open_page(f"{gateway.url}/#requests") as page:
        expect(page.get_by_text("gateway keys add NAME --admin")).to_be_visible()
        for view, order in (("requests", "Cancel"), ("models", "Unload"), ("sessions", "Forget")):
            _go(page, view)
            expect(page.get_by_role("button", name=order).first).to_be_disabled()
    assert gateway.orders == []


def test_a_key_without_rights_sees_its_requests_and_the_chat(
    gateway: ScriptedGateway, open_page: OpenPage
) -> None:
    gateway.views["session"] = rows.session("own")
    with open_page(f"{gateway.url}/#requests") as page:
        expect(page.get_by_role("button", name="Cancel").first).to_be_enabled()
        expect(page.get_by_role("navigation").get_by_role("link")).to_have_count(2)
        page.evaluate("location.hash = 'machines'")
        expect(page.locator("h1")).to_have_text("Chat")
    assert ["requests"] in gateway.connections


def test_orders_are_given_once_they_are_confirmed(
    gateway: ScriptedGateway, open_page: OpenPage
) -> None:
    gateway.views["rollout"] = rows.rollout(paused=True)
    with open_page(f"{gateway.url}/#rollout") as page:
        page.get_by_role("button", name="Roll back").click()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Roll back").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("All machines return to version 3")
        dialog.get_by_role("button", name="Roll back").click()
        expect(page.get_by_text("The order roll_back was given.")).to_be_visible()
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_text("The order resume was given.")).to_be_visible()
        _go(page, "requests")
        page.get_by_role("button", name="Cancel req-000000a91c").click()
        expect(page.get_by_text("The order cancel was given.")).to_be_visible()
        _go(page, "models")
        page.get_by_role("button", name="Show 2 more machines").first.click()
        page.get_by_role("button", name="Load mlx-community/bge-m3 on mini-4").click()
        expect(page.get_by_text("The order load was given.")).to_be_visible()
    assert gateway.orders == [
        {"order": "roll_back"},
        {"order": "resume"},
        {"order": "cancel", "client": "anna", "request_id": "req-000000a91c"},
        {"order": "load", "model": "mlx-community/bge-m3", "worker": "mini-4"},
    ]


def test_an_answer_streams_moves_and_outlives_a_reload(
    gateway: ScriptedGateway, open_page: OpenPage
) -> None:
    gateway.answer = [
        {"reasoning_content": "Let me think."}, 0.4,
        {"content": "It is **bold**, `code`\n\n- one\n- two\n\n```js\nlet x = '<b>';\n```\n"}, 0.3,
        {"moved_to": "mini-1"}, 0.4,
        {"tool_calls": [{"index": 0, "function": {"name": "search", "arguments": '{"q"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]  # fmt: skip
    with open_page(f"{gateway.url}/#chat") as page:
        expect(page.locator("#model")).not_to_have_value("")
        page.get_by_label("Your message").fill("first line")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("second line")
        page.keyboard.press("Enter")
        expect(page.locator("details.reasoning")).to_have_attribute("open", "")
        _check_answer(page)
        expect(page.locator("details.reasoning")).not_to_have_attribute("open", "")
        page.reload()
        _check_answer(page)
        expect(page.get_by_text("second line")).to_be_visible()
        page.get_by_role("button", name="New conversation").click()
        page.get_by_role("button", name="Begin", exact=True).click()
        expect(page.get_by_text("Ask the cluster")).to_be_visible()
    (asked,) = gateway.asked
    assert asked["messages"] == [{"role": "user", "content": "first line\nsecond line"}]
    assert asked["model"] == "chat"


def _check_answer(page: Page) -> None:
    answer = page.locator(".message.assistant")
    expect(answer).to_contain_text("moved from studio-0 to mini-1")
    expect(answer).to_contain_text("on mini-1 · Qwen3-4B-4bit · 8 tokens")
    expect(answer.locator("strong", has_text="bold")).to_be_visible()
    expect(answer.locator("ul li", has_text="two")).to_be_visible()
    expect(answer.locator("pre code")).to_have_text("let x = '<b>';\n")
    expect(answer.locator(".calls")).to_contain_text('search{"q": 1}')


def test_a_stream_that_breaks_shows_why_and_is_tried_again(
    gateway: ScriptedGateway, open_page: OpenPage
) -> None:
    gateway.answer = [{"content": "Half of"}, "broken"]
    with open_page(f"{gateway.url}/#chat") as page:
        _ask(page, "Hello")
        expect(page.locator(".failure")).to_contain_text("The stream broke off")
        expect(page.locator(".prose")).to_have_text("Half of")
        gateway.answer = [{"error": {"message": "no worker has the model"}}]
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".failure")).to_have_text("no worker has the model")
        gateway.answer = [{"content": "One"}, 30.0]
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".prose")).to_have_text("One")
        page.get_by_label("Your message").focus()
        page.keyboard.press("Escape")
        expect(page.locator(".failure")).to_have_text("Stopped.")
        gateway.answer = [{"content": "Whole."}]
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".prose")).to_have_text("Whole.")
        expect(page.locator(".message")).to_have_count(2)
    assert [len(body["messages"]) for body in gateway.asked] == [1, 1, 1, 1]


def test_the_settings_of_the_chat_are_sent(gateway: ScriptedGateway, open_page: OpenPage) -> None:
    with open_page(f"{gateway.url}/#chat") as page:
        page.get_by_label("System prompt").fill("Be brief.")
        page.get_by_label("Temperature").fill("0.3")
        page.get_by_label("Effort").select_option("low")
        page.get_by_label("JSON schema").fill('{"type": ')
        _ask(page, "Hello")
        expect(page.locator("#schema-problem")).to_contain_text("This is no JSON schema")
        expect(page.get_by_label("JSON schema")).to_be_focused()
        assert gateway.asked == []
        page.get_by_label("JSON schema").fill('{"type": "object"}')
        page.get_by_label("Model or skill").select_option("mlx-community/Qwen3-4B-4bit")
        page.get_by_label("Your message").press("Enter")
        expect(page.locator(".prose")).to_have_text("Hello.")
        offered = page.locator("#model option").all_inner_texts()
        assert offered.count("chat") == 1 and "mlx-community/bge-m3" not in offered
    (asked,) = gateway.asked
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (asked["temperature"], asked["reasoning_effort"]) == (0.3, "low")
    assert asked["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert asked["model"] == "mlx-community/Qwen3-4B-4bit"


def test_everything_is_reached_with_the_keyboard(
    gateway: ScriptedGateway, open_page: OpenPage
) -> None:
    with open_page(gateway.url) as page:
        expect(page.locator("tbody tr").first).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        for view in VIEWS:
            link = page.locator(f"nav a[href='#{view}']")
            _tab_to(page, link)
            page.keyboard.press("Enter")
            expect(page.locator("h1")).to_have_text(TITLES[view])
            expect(page.locator("h1")).to_be_focused()
        _tab_to(page, page.get_by_label("Your message"))
        page.keyboard.type("Hello")
        page.keyboard.press("Enter")
        expect(page.locator(".prose")).to_have_text("Hello.")
        _go(page, "machines")
        _tab_to(page, page.get_by_role("searchbox"))
        page.keyboard.type("studio")
        expect(page.locator("tbody tr")).to_have_count(2)
        _tab_to(page, page.get_by_role("button", name="Tokens/s"))
        page.keyboard.press("Enter")
        heading = page.get_by_role("columnheader", name="Tokens/s")
        expect(heading).to_have_attribute("aria-sort", "descending")
        expect(page.locator("tbody tr").first).to_contain_text("studio-3")
        _go(page, "rollout")
        order = page.get_by_role("button", name="Roll back")
        _tab_to(page, order)
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(order).to_be_focused()
    assert gateway.orders == []


def _tab_to(page: Page, wanted: Any) -> None:
    expect(wanted).to_be_visible()
    for _ in range(80):
        if wanted.evaluate("node => node === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the focus never comes to {wanted}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_serious(
    gateway: ScriptedGateway, open_page: OpenPage, scheme: str, width: int
) -> None:
    if not _AXE.exists():
        pytest.skip("axe-core is not installed: `make test` does it")
    size = {"width": width, "height": 900}
    gateway.answer = [{"reasoning_content": "Hm."}, {"content": "```\nx\n```"}, "broken"]
    with open_page(gateway.url, color_scheme=scheme, viewport=size, bypass_csp=True) as page:
        page.add_script_tag(path=_AXE)
        for view in VIEWS:
            _go(page, view)
            if view == "chat":
                _ask(page, "Hello")
                expect(page.get_by_role("button", name="Retry")).to_be_visible()
            _check_axe(page, view)
        page.get_by_role("button", name="New conversation").click()
        _check_axe(page, "the dialog")
        page.keyboard.press("Escape")
        gateway.refuses = True
        gateway.drop()
        expect(page.get_by_text("trying again")).to_be_visible()
        _check_axe(page, "the notice")


def _check_axe(page: Page, what: str) -> None:
    page.wait_for_timeout(100)  # the frame after the last event
    found = page.evaluate("async () => (await axe.run()).violations")
    told = [
        (each["id"], each["impact"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert told == [], f"{what}: {json.dumps(told, indent=1)}"


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_nothing_scrolls_sideways(
    gateway: ScriptedGateway, open_page: OpenPage, width: int
) -> None:
    with open_page(gateway.url, viewport={"width": width, "height": 800}) as page:
        for view in VIEWS:
            _go(page, view)
            assert _overflow(page) <= 0, view


def test_the_theme_is_chosen_and_stays(gateway: ScriptedGateway, open_page: OpenPage) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with open_page(gateway.url, color_scheme="light") as page:
        light = page.evaluate(ground)
        page.get_by_role("button", name="Dark theme").click()
        dark = page.evaluate(ground)
        assert dark != light
        page.reload()
        assert page.evaluate(ground) == dark
        expect(page.get_by_role("button", name="Light theme")).to_be_visible()
