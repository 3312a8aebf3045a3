"""From messages or text to token ids, on a thread of its own: a long prompt must not hold
up the decode steps of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError

from shared.errors import InvalidRequest, RequestError
from shared.messages.request import DEFAULT_MAX_TOKENS
from worker.engine.model import LoadedModel
from worker.link.messages import Submit

_ROLES = {"developer": "system"}
"""OpenAI's newer name for a role that chat templates know by the older one."""


@dataclass(frozen=True, slots=True)
class PreparedSequence:
    """A sequence ready for prefill.

    Attributes:
        prompt_ids: the tokens of the prompt alone; never empty.
        max_tokens: as asked, but at most what the context leaves; 0 where it is only counted.
    """

    order: Submit
    prompt_ids: list[int]
    max_tokens: int

    @property
    def all_ids(self) -> list[int]:
        """Prompt and what an earlier attempt generated: the tokens to prefill."""
        answered = self.order.answer_ids
        return [*self.prompt_ids, *answered] if answered else self.prompt_ids

    def resumed(self, answer_ids: Sequence[int]) -> "PreparedSequence":
        """The same, to go on after an answer that was interrupted here."""
        order = replace(self.order, resumed_ids=list(answer_ids), replayed_ids=[])
        return replace(self, order=order)


def prepare(order: Submit, model: LoadedModel) -> PreparedSequence:
    """Render, tokenise and check one prompt.

    Raises:
        RequestError: the prompt cannot be rendered, is too long, or names unknown tokens.
    """
    prompt_ids = _tokenise(order, model)
    if not prompt_ids:
        raise InvalidRequest("the prompt has no tokens", param=_param(order))
    _check_vocabulary(order, prompt_ids, model.vocabulary_size)
    if order.count_only:
        return PreparedSequence(order, prompt_ids, 0)
    _check_resume(order, len(prompt_ids), model)
    context = model.max_context_tokens
    if order.max_tokens is not None and order.max_tokens > context:
        raise RequestError(
            f"max_tokens: {order.max_tokens} is more than the model's context of {context} tokens",
            code="context_length_exceeded",
            param="max_tokens",
        )
    if len(prompt_ids) >= context:
        raise RequestError(
            f"{_param(order)}: {len(prompt_ids)} tokens leave no room in the model's context "
            f"of {context}",
            code="context_length_exceeded",
            param=_param(order),
        )
    wanted = order.max_tokens or DEFAULT_MAX_TOKENS
    return PreparedSequence(order, prompt_ids, min(wanted, context - len(prompt_ids)))


def _check_vocabulary(order: Submit, prompt_ids: list[int], size: int) -> None:
    """Raises InvalidRequest for an unknown token: MLX would read beyond its tables."""
    given = {
        _param(order): prompt_ids,
        "stop_token_ids": order.stop_token_ids,
        "logit_bias": [int(token) for token in order.sampling.logit_bias],
        "resume.token_ids": order.answer_ids,
    }
    for param, token_ids in given.items():
        if (worst := max(token_ids, default=0)) >= size:
            raise InvalidRequest(
                f"{param}: token id {worst} is outside the model's vocabulary of {size}",
                param=param,
            )


def _check_resume(order: Submit, prompt_tokens: int, model: LoadedModel) -> None:
    """Raises RequestError for an answer that cannot have been this model's."""
    param = "resume.token_ids"
    answered = len(order.answer_ids)
    if answered and prompt_tokens + answered > model.max_context_tokens:
        raise RequestError(
            f"{param}: {answered} tokens after a prompt of {prompt_tokens} exceed "
            f"the model's context of {model.max_context_tokens}",
            code="context_length_exceeded",
            param=param,
        )
    if order.text_sent:
        # Some tokenizers drop a leading space at the start of a text.
        most = len(model.tokenizer.decode(order.resumed_ids)) + 1
        if order.text_sent > most:
            raise InvalidRequest(
                f"resume.text_sent: {order.text_sent} characters, but the tokens make {most - 1}",
                param="resume.text_sent",
            )


def _tokenise(order: Submit, model: LoadedModel) -> list[int]:
    if order.token_ids is not None:
        return order.token_ids
    if order.text is not None:
        return list(model.tokenizer.encode(order.text))
    return _render(order.messages or [], model)


def _render(messages: list[dict[str, str]], model: LoadedModel) -> list[int]:
    if not model.tokenizer.has_chat_template:
        raise InvalidRequest(
            "messages: this model has no chat template; use prompt", param="messages"
        )
    turns: list[Mapping[str, Any]] = [
        {**turn, "role": _ROLES.get(turn["role"], turn["role"])} for turn in messages
    ]
    try:
        return list(model.tokenizer.apply_chat_template(turns, add_generation_prompt=True))
    except TemplateError as error:
        raise InvalidRequest(
            f"messages: the model's chat template refuses them: {error}", param="messages"
        ) from None
    except Exception as error:  # a template is a program from outside
        raise RequestError(
            f"the model's chat template failed: {type(error).__name__}: {error}",
            code="request_failed",
            param="messages",
        ) from None


def _param(order: Submit) -> str:
    return "messages" if order.messages is not None else "prompt"
