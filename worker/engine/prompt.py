"""Converts messages or text to token ids, on a thread of its own: a long prompt must not delay
the decode steps of other sequences."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shared.errors import InvalidRequest, RequestError
from shared.messages.request import DEFAULT_MAX_TOKENS
from worker.answer.answer import AnswerDecoder, DeliveredLengths
from worker.answer.model_output_format import PlainParser
from worker.answer.parser import AnswerParser
from worker.engine.answer_constraints import compile_constraint, tools_of
from worker.engine.chat_template import RenderedPrompt
from worker.engine.model import LoadedModel
from worker.engine.prompt_tokens import TooManyTokens, check_length, counted, tokenised
from worker.engine.sequence import OutputBuilder
from worker.link.facts import SequenceOutput
from worker.link.orders import SubmitSequence


@dataclass(frozen=True, slots=True)
class PreparedSequence:
    """A sequence ready for prefill.

    Attributes:
        prompt_ids: the tokens of the prompt alone; never empty.
        max_tokens: of the answer, at most what the context leaves; 0 if tokens are only counted.
        sequence: turns generated tokens into outputs; None if tokens are only counted.
        replayed: the outputs of tokens that an earlier attempt generated; the last one has a finish
            reason if nothing is left to generate.
    """

    order: SubmitSequence
    prompt_ids: list[int]
    max_tokens: int
    sequence: OutputBuilder | None = None
    replayed: list[SequenceOutput] = field(default_factory=list)

    @property
    def all_ids(self) -> list[int]:
        """The prompt and the tokens that earlier attempts generated: the tokens to prefill."""
        answered = self.order.answer_ids
        return [*self.prompt_ids, *answered] if answered else self.prompt_ids

    def resumed(self, answer_ids: Iterable[int]) -> "PreparedSequence":
        """Return a copy that continues after these answer tokens; used after a preemption."""
        order = replace(self.order, resumed_ids=list(answer_ids), replayed_ids=[])
        return replace(self, order=order)


def prepare(
    order: SubmitSequence, model: LoadedModel, pause: Callable[[], None] = lambda: None
) -> PreparedSequence:
    """Render, tokenise and check one prompt, and replay the tokens of an earlier attempt.

    Args:
        pause: called now and then while a long text is tokenised, or many tools are compiled.

    Raises:
        RequestError: the prompt cannot be rendered, is too long, or has unknown tokens; or the
            constraint of the answer cannot be met.
    """
    if order.embedding is not None:
        raise RequestError(f"{order.model} generates text, and embeds none", code="not_supported")
    try:
        prompt = _tokenise(order, model, pause)
    except TooManyTokens as error:
        raise RequestError(
            f"{_param(order)}: more than {error.at_least} tokens; the model's context has "
            f"{model.max_context_tokens}",
            code="context_length_exceeded",
            param=_param(order),
        ) from None
    prompt_ids = prompt.token_ids
    if not prompt_ids:
        raise InvalidRequest("the prompt has no tokens", param=_param(order))
    _check_vocabulary(order, prompt_ids, model.vocabulary_size)
    if order.count_only:
        return PreparedSequence(order, prompt_ids, 0)
    _check_resume(order, len(prompt_ids), model)
    context = model.max_context_tokens
    if len(prompt_ids) >= context:
        raise RequestError(
            f"{_param(order)}: {len(prompt_ids)} tokens fill the model's context of {context}",
            code="context_length_exceeded",
            param=_param(order),
        )
    requested = order.max_tokens or DEFAULT_MAX_TOKENS
    max_tokens = min(requested, context - len(prompt_ids))
    answer = _answer(order, model, prompt, max_tokens, pause)
    token_bytes = model.grammars.token_bytes if model.grammars is not None else None
    sequence = OutputBuilder(order, answer, max_tokens, model.replay_decode, token_bytes)
    replayed = sequence.replay()
    if sequence.problem is not None:
        raise RequestError(sequence.problem, code="request_failed", param=_param(order))
    sequence.decode_with(model.decode)
    return PreparedSequence(order, prompt_ids, max_tokens, sequence, replayed)


def _answer(
    order: SubmitSequence,
    model: LoadedModel,
    prompt: RenderedPrompt,
    max_tokens: int,
    pause: Callable[[], None],
) -> AnswerDecoder:
    is_chat = order.messages is not None
    opened = is_chat and model.format.opens_reasoning(prompt.end)
    thinks = is_chat and model.format.can_reason and not prompt.closed_reasoning
    constraint, warnings = compile_constraint(
        order, model, opened=opened, thinks=thinks, max_tokens=max_tokens, pause=pause
    )
    bind = constraint.enforce_call if constraint is not None and order.calling is not None else None
    parser: AnswerParser = PlainParser()
    control: Mapping[int, str] = {}
    if is_chat:
        parser = model.format.parser(tools_of(order.calling), opened=opened, bind=bind)
        control = model.format.control.by_id
    sent = DeliveredLengths(order.sent.text, order.sent.reasoning, order.sent.tool_calls)
    answer = AnswerDecoder(
        model.replay_decode,
        prompt.token_ids,
        parser,
        control,
        order.stop,
        sent=sent,
        constraint=constraint,
    )
    answer.warn([*prompt.warnings, *warnings])
    return answer


def _check_vocabulary(order: SubmitSequence, prompt_ids: list[int], size: int) -> None:
    """Check that all tokens are in the vocabulary: MLX would read out of bounds.

    Raises:
        InvalidRequest: an unknown token.
    """
    ids_by_param = {
        _param(order): prompt_ids,
        "stop_token_ids": order.stop_token_ids,
        "logit_bias": [int(token) for token in order.sampling.logit_bias],
        "resume.token_ids": order.answer_ids,
    }
    for param, token_ids in ids_by_param.items():
        if (highest := max(token_ids, default=0)) >= size:
            raise InvalidRequest(
                f"{param}: token id {highest} is outside the model's vocabulary of {size}",
                param=param,
            )


def _check_resume(order: SubmitSequence, prompt_tokens: int, model: LoadedModel) -> None:
    """Check the answer of an earlier attempt.

    Raises:
        RequestError: this model cannot have generated the answer.
    """
    param = "resume.token_ids"
    answered = len(order.answer_ids)
    if answered and prompt_tokens + answered > model.max_context_tokens:
        raise RequestError(
            f"{param}: {answered} tokens after a prompt of {prompt_tokens} exceed "
            f"the model's context of {model.max_context_tokens}",
            code="context_length_exceeded",
            param=param,
        )
    sent = order.sent.text + order.sent.reasoning
    if sent:
        param = "resume.sent" if order.sent.reasoning else "resume.text_sent"
        # Some tokenizers drop a leading space at the start of a text.
        longest = len(model.tokenizer.decode(order.resumed_ids)) + 1
        if sent > longest:
            raise InvalidRequest(
                f"{param}: {sent} characters, but the tokens decode to {longest - 1}",
                param=param,
            )


def _tokenise(
    order: SubmitSequence, model: LoadedModel, pause: Callable[[], None]
) -> RenderedPrompt:
    """
    Raises:
        TooManyTokens: the prompt does not fit into the context; not if tokens are only counted.
        RequestError: it cannot be rendered.
    """
    if order.token_ids is not None:
        return RenderedPrompt(order.token_ids, "")

    def encode(text: str) -> list[int]:
        return list(model.tokenizer.encode(text, add_special_tokens=False))

    def tokenize(parts: Sequence[str]) -> list[int]:
        try:
            return tokenised(parts, model.max_context_tokens, encode, pause)
        except TooManyTokens:
            if not order.count_only:
                raise
            return counted(parts, encode, pause)

    if order.text is not None:
        try:
            check_length(order.text, model.max_context_tokens, encode, pause)
        except TooManyTokens:
            if not order.count_only:
                raise
            return RenderedPrompt(counted([order.text], encode, pause), "")
        return RenderedPrompt(list(model.tokenizer.encode(order.text)), "")
    if model.templates is None:
        raise InvalidRequest(
            "messages: this model has no chat template; use prompt", param="messages"
        )
    tools = order.calling.tools if order.calling is not None else []
    template = model.templates.choose(with_tools=bool(tools))
    values, warnings = template_values(order, template.variables, reasons=model.format.can_reason)
    rendered = template.render(
        order.messages or [], tools, values, continues=order.continues, tokenize=tokenize
    )
    changes = rendered.changes if order.debug else ()
    return replace(rendered, warnings=[*changes, *warnings])


def _param(order: SubmitSequence) -> str:
    return "messages" if order.messages is not None else "prompt"


_SWITCHES = ("enable_thinking", "thinking")
"""Boolean template variables that turn reasoning on and off."""
_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high", "none": "low"}
"""Efforts that templates with a `reasoning_effort` do not know, and the nearest known one."""


def template_values(
    order: SubmitSequence, variables: Collection[str], *, reasons: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the template variables of a request, and warnings about values that have no effect.

    Args:
        variables: the variables that the template reads.
        reasons: whether the model is known to reason.
    """
    values = {key: value for key, value in order.template_values.items() if key in variables}
    warnings = [
        f"chat_template_kwargs.{name}: the model's chat template does not read it"
        for name in sorted(order.template_values.keys() - values.keys())
    ]
    effort = order.reasoning_effort
    if effort is None:
        return values, warnings
    switches = [name for name in _SWITCHES if name in variables]
    for name in switches:
        values.setdefault(name, effort != "none")
    if "reasoning_effort" in variables and not (effort == "none" and switches):
        known = _EFFORTS.get(effort, effort)
        values.setdefault("reasoning_effort", known)
        if known != effort:
            warnings.append(
                f"reasoning_effort: the model does not know `{effort}`: it gets `{known}`"
            )
    elif effort == "none" and reasons and not switches:
        warnings.append("reasoning_effort: thinking cannot be turned off for this model")
    return values, warnings
