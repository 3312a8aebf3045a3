"""docs/clients.md: it tells of every field that a request may have, and of the versions tested."""

import pytest

from controller.gateway.anthropic.requests import MessagesRequest
from controller.gateway.openai.requests import ChatRequest, CompletionRequest
from controller.gateway.responses.requests import ResponsesRequest
from shared.codec import StrictInput
from tests.agents import installed, page


@pytest.mark.parametrize(
    ("title", "shapes"),
    [
        ("Chat Completions and Completions", (ChatRequest, CompletionRequest)),
        ("Responses", (ResponsesRequest,)),
        ("Messages", (MessagesRequest,)),
    ],
)
def test_every_field_is_told_of(title: str, shapes: tuple[type[StrictInput], ...]) -> None:
    known = {name for shape in shapes for name in shape.model_fields}
    assert known <= page.fields(title)


def test_the_versions_are_those_that_are_tested() -> None:
    table = page.section("Clients: agents, apps and SDKs")
    for package in vars(installed).values():
        if isinstance(package, installed.Installed):
            assert f"| {package.version} |" in table, package.package


def test_a_block_is_for_the_gateway_and_model_of_who_asks() -> None:
    assert page.exports("Claude Code", "http://gateway", "other")["ANTHROPIC_MODEL"] == "other"
    assert '"model": "cluster/other"' in page.block("OpenCode", "json", "http://gateway", "other")
    assert "http://gateway/v1" in page.block("Codex CLI", "toml", "http://gateway", "other")
