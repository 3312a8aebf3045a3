"""Builds the route query of a request."""

from collections.abc import Collection, Sequence

from controller.requests.request import TrackedRequest
from controller.routing.route_query import Links, RouteQuery
from shared.ids import ModelId, WorkerId
from shared.messages.prefixes import prefix_links
from shared.messages.prompt_rules import cleaned
from shared.messages.request import InferenceRequest
from shared.settings.kv_cache import PromptLineRule


def route_query_of(
    request: TrackedRequest,
    rules: Sequence[PromptLineRule],
    home: WorkerId | None,
    *,
    may_reason: bool = False,
) -> RouteQuery:
    """Return the route query of a request, with the earlier messages of its session.

    Args:
        rules: that workers apply to prompts before they compare them.
        home: the worker that served the session.
        may_reason: the answer may contain reasoning, or reasoning must be suppressed.
    """
    body = request.with_history
    turns = cleaned(body.turns, rules)

    abilities = _abilities(body)
    known: dict[ModelId, Links] = {}

    def links(model: ModelId) -> Links:
        if model not in known:
            found = prefix_links(model, body, turns)
            known[model] = [(link.hex(), share) for link, share in found]
        return known[model]

    return RouteQuery(
        models=request.models,
        requires=body.requires,
        level=body.level,
        client=request.client,
        text_bytes=body.text_bytes(turns),
        token_ids=sum(len(prompt) for prompt in body.prompts if not isinstance(prompt, str)),
        links=links,
        session=request.affinity,
        home=home,
        is_turn=request.session is not None,
        is_list_part=request.part_of is not None,
        abilities=abilities,
        generates=not body.embeds,
        structured=may_reason or _is_structured(body, abilities),
    )


def _abilities(body: InferenceRequest) -> frozenset[str]:
    abilities = []
    if body.tools and body.usable_tools:
        abilities.append("tools")
    if body.structure is not None:
        abilities.append("schema")
    if body.continue_final_message:
        abilities.append("continuation")
    if body.embeds:
        abilities.append("rerank" if body.query is not None else "embedding")
    return frozenset(abilities)


def _is_structured(body: InferenceRequest, abilities: Collection[str]) -> bool:
    """Whether the request, or the answer that it resumes, contains more than text."""
    sent = body.resume.characters if body.resume is not None else None
    return (
        bool(abilities or body.chat_template_kwargs)
        or (sent is not None and bool(sent.reasoning or sent.tool_calls))
        or body.reasoning_effort not in (None, "none")
        or body.thinking_budget is not None
        or any(
            message.reasoning or message.tool_calls or message.tool_call_id
            for message in body.messages or []
        )
    )
