"""What a request asks of a worker."""

from collections.abc import Collection, Sequence

from controller.requests.request import ClientRequest
from controller.routing.route_query import Links, RouteQuery
from shared.ids import ModelId, WorkerId
from shared.messages.prefixes import prefix_links
from shared.messages.prompt_rules import cleaned
from shared.messages.request import InferenceRequest
from shared.settings.kv_cache import PromptRule


def route_query_of(
    request: ClientRequest,
    rules: Sequence[PromptRule],
    home: WorkerId | None,
    *,
    reasons: bool = False,
) -> RouteQuery:
    """The need of a request with all that was said before it in its session.

    Args:
        rules: that workers apply to prompts before they compare them.
        home: where its session was served.
        reasons: of its answer something may be reasoning, or have to be kept from it.
    """
    whole = request.whole
    turns = cleaned(whole.turns, rules)

    abilities = _abilities(whole)
    known: dict[ModelId, Links] = {}

    def links(model: ModelId) -> Links:
        if model not in known:
            found = prefix_links(model, whole, turns)
            known[model] = [(link.hex(), share) for link, share in found]
        return known[model]

    return RouteQuery(
        models=request.models,
        requires=whole.requires,
        level=whole.level,
        text_bytes=whole.text_bytes(turns),
        token_ids=sum(len(prompt) for prompt in whole.prompts if not isinstance(prompt, str)),
        links=links,
        session=request.affinity,
        home=home,
        is_turn=request.session is not None,
        among_others=request.part_of is not None,
        abilities=abilities,
        structured=reasons or _is_structured(whole, abilities),
    )


def _abilities(asked: InferenceRequest) -> frozenset[str]:
    needed = []
    if asked.tools and asked.usable_tools:
        needed.append("tools")
    if asked.structure is not None:
        needed.append("schema")
    if asked.continue_final_message:
        needed.append("continuation")
    return frozenset(needed)


def _is_structured(asked: InferenceRequest, abilities: Collection[str]) -> bool:
    """Whether there is more in it than text, or in the answer that it goes on with."""
    sent = asked.resume.characters if asked.resume is not None else None
    return (
        bool(abilities or asked.chat_template_kwargs)
        or (sent is not None and bool(sent.reasoning or sent.tool_calls))
        or asked.reasoning_effort not in (None, "none")
        or asked.thinking_budget is not None
        or any(
            message.reasoning or message.tool_calls or message.tool_call_id
            for message in asked.messages or []
        )
    )
