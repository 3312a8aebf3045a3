"""What an owned request asks of a worker."""

from collections.abc import Sequence

from controller.owned_request import OwnedRequest
from controller.routing.need import Links, Need
from shared.ids import ModelId, WorkerId
from shared.messages.prefixes import prefix_links
from shared.messages.prompt_rules import cleaned
from shared.messages.request import utf8_bytes
from shared.settings.tree import PromptRule


def need_of(request: OwnedRequest, rules: Sequence[PromptRule], home: WorkerId | None) -> Need:
    """The need of a request with all that was said before it in its session.

    Args:
        rules: that workers apply to prompts before they compare them.
        home: where its session was served.
    """
    whole = request.whole
    turns = cleaned(whole.turns, rules)
    texts = [turn["content"] for turn in turns]
    token_ids = 0
    for prompt in whole.prompts:
        if isinstance(prompt, str):
            texts.append(prompt)
        else:
            token_ids += len(prompt)

    known: dict[ModelId, Links] = {}

    def links(model: ModelId) -> Links:
        if model not in known:
            found = prefix_links(model, whole, turns)
            known[model] = [(link.hex(), share) for link, share in found]
        return known[model]

    return Need(
        models=request.models,
        requires=whole.requires,
        level=whole.level,
        text_bytes=sum(map(utf8_bytes, texts)),
        token_ids=token_ids,
        links=links,
        session=request.kinship,
        home=home,
        among_others=request.part_of is not None,
    )
