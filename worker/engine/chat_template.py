"""Renders messages and tools to the tokens of a prompt, with the model's chat template.

Text of clients cannot produce control tokens: where a string of a message or tool contains an added
token of the tokenizer (`<|im_end|>`, `</think>`), a nonce splits it before the template is
rendered, and the pieces are tokenised separately.
"""

import inspect
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from os.path import commonprefix
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, meta
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from mlx_lm.tokenizer_utils import TokenizerWrapper

from shared.errors import InvalidRequest, ModelError, RequestError
from worker.answer.call_ids import WriteId, written_ids
from worker.answer.reasoning import ReasoningFormat
from worker.engine.message_order import find_order, ordered
from worker.engine.native_tool_prompt import find_native_tool_prompt, with_native_tool_prompt
from worker.engine.tool_prompt import takes_text, with_text_arguments, with_tools_as_text

TokenizeParts = Callable[[Sequence[str]], list[int]]
"""Tokenises texts one by one, and returns all tokens."""
_ROLES = {"developer": "system"}
"""OpenAI's newer name of a role, and the older name that chat templates know."""
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""The names of reasoning in templates; they differ between model families."""
_ALTERNATE = ("user", "assistant")
_END_CHARACTERS = 64
_FUNCTIONS = {*DEFAULT_NAMESPACE, "raise_exception", "strftime_now"}
"""Functions that templates may call."""


class _Generation(Extension):
    """`{% generation %}` marks the text that a model is trained on; it prints its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered prompt.

    Attributes:
        end: the last characters of its text.
        closed_reasoning: the model will not reason: reasoning is complete already, or turned off.
        warnings: sentences about parts of the request that have no effect.
        changes: sentences about how the messages were reordered for the template.
    """

    token_ids: list[int]
    end: str
    closed_reasoning: bool = False
    warnings: Sequence[str] = ()
    changes: Sequence[str] = ()


class ChatTemplate:
    """Belongs to the thread that prepares prompts.

    Attributes:
        variables: the variables that the template reads and does not set itself.
        continues: an answer may continue a last message of the assistant.

    Args:
        reasoning: the model's reasoning format.
        defaults: values of template variables that the request does not set.
        write_id: converts the id of a call to the form that the template demands.
        text: the template, if the tokenizer has several named ones; None if it has a single one.

    Raises:
        ModelError: no request could use the template.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        reasoning: ReasoningFormat | None,
        defaults: Mapping[str, Any],
        write_id: WriteId | None = None,
        *,
        text: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._chosen = {} if text is None else {"chat_template": text}
        self._reasoning = reasoning
        self._write_id = write_id
        self.variables = _variables(tokenizer, text)
        self._defaults = {key: defaults[key] for key in self.variables & defaults.keys()}
        added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
        self._guard = AddedTokenSplitter(added)
        self._native_tool_prompt = find_native_tool_prompt(
            text or getattr(tokenizer, "chat_template", None), added
        )
        self._text_arguments = False
        self._text_arguments = takes_text(self._try_render)
        self.order = find_order(self._try_render)
        self.continues = self._can_continue()

    @property
    def knows_tools(self) -> bool:
        return "tools" in self.variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        values: Mapping[str, Any],
        *,
        continues: bool = False,
        tokenize: TokenizeParts | None = None,
    ) -> RenderedPrompt:
        """Render the prompt of a conversation, with the assistant's turn opened.

        Args:
            tools: functions in OpenAI's format.
            values: of variables of the template, beyond messages and tools.
            continues: the last message is the assistant's, and the answer continues it.
            tokenize: tokenises the parts of the text, in which no control token is a client's.

        Raises:
            RequestError: the template fails or rejects the conversation.
        """
        ids = written_ids(messages, self._write_id)
        turns = [self._turn(message, ids) for message in messages]
        known: dict[str, Any] = {**self._defaults, **values}
        known.setdefault("enable_thinking", self._reasoning is not None)
        if self.knows_tools and tools:
            known["tools"] = [{"type": "function", "function": dict(tool)} for tool in tools]
        elif not self.knows_tools and self._native_tool_prompt is None:
            turns = with_tools_as_text(turns, tools)
        turns, changes = ordered(turns, self.order)
        nonce = secrets.token_hex(8)
        turns, known = self._guard.split(turns, nonce), self._guard.split(known, nonce)
        if not self.knows_tools and self._native_tool_prompt is not None:
            turns = with_native_tool_prompt(
                turns, self._guard.split(tools, nonce), self._native_tool_prompt
            )
        if continues:
            text = self._continued(turns, known)
        else:
            text = self._rendered(turns, known)
        pieces = text.split(nonce)
        token_ids = (tokenize or self._tokenize)([piece for piece in pieces if piece])
        if continues:
            return RenderedPrompt(token_ids, "", closed_reasoning=True, changes=changes)
        end = pieces[-1][-_END_CHARACTERS:]
        closed = known.get("enable_thinking") is False or known.get("thinking") is False
        if self._reasoning is not None:
            closed |= end.rstrip().endswith(self._reasoning.close)
        return RenderedPrompt(token_ids, end, closed, changes=changes)

    def _tokenize(self, parts: Sequence[str]) -> list[int]:
        encode = self._tokenizer.encode
        return [token for part in parts for token in encode(part, add_special_tokens=False)]

    def _can_continue(self) -> bool:
        contents = ("canary1", "canary2")
        turns = [
            {"role": role, "content": each} for role, each in zip(_ALTERNATE, contents, strict=True)
        ]
        try:
            text = self._continued(turns, dict(self._defaults))
        except RequestError:
            return False
        return contents[0] in text and text.endswith(contents[1])

    def _continued(self, turns: list[dict[str, Any]], values: dict[str, Any]) -> str:
        """Render a conversation up to the end of the last message's content."""
        end = secrets.token_hex(8)
        *before, last = turns
        marked = [*before, {**last, "content": last["content"] + end}]
        text, mark, _ = self._rendered(marked, values, opens=False).rpartition(end)
        if not mark:
            raise InvalidRequest(
                "continue_final_message: the model's chat template omits the message",
                param="continue_final_message",
            )
        return text

    def _try_render(self, turns: list[dict[str, Any]]) -> str | None:
        """Render turns; None if the template fails or rejects them."""
        if not self.knows_tools and self._native_tool_prompt is None:
            turns = with_tools_as_text(turns, [])
        if self._text_arguments:
            turns = with_text_arguments(turns)
        try:
            return self._rendered(turns, dict(self._defaults))
        except RequestError:
            return None

    def _rendered(
        self, turns: list[dict[str, Any]], values: dict[str, Any], *, opens: bool = True
    ) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    turns, add_generation_prompt=opens, tokenize=False, **self._chosen, **values
                )
            )
        except TemplateError as error:
            raise InvalidRequest(
                f"messages: the model's chat template rejects them: {error}", param="messages"
            ) from None
        except Exception as error:  # a template is third-party code
            raise RequestError(
                f"the model's chat template failed: {type(error).__name__}: {error}",
                code="request_failed",
                param="messages",
            ) from None

    def _turn(self, message: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
        turn = {**message, "role": _ROLES.get(message["role"], message["role"])}
        if turn["role"] == "assistant":
            reasoning = turn.pop("reasoning", None)
            if reasoning is None and self._reasoning is not None:
                reasoning, turn["content"] = _split_reasoning(turn["content"], self._reasoning)
            if reasoning:
                turn.update(dict.fromkeys(_REASONING_KEYS, reasoning))
            if calls := turn.get("tool_calls"):
                turn["tool_calls"] = [
                    _template_call(call, ids, self._text_arguments) for call in calls
                ]
        elif (call_id := turn.get("tool_call_id")) is not None:
            turn["tool_call_id"] = ids.get(call_id, call_id)
        return turn


def _split_reasoning(content: str, reasoning: ReasoningFormat) -> tuple[str | None, str]:
    """Split an assistant's content into the reasoning at its start, if any, and the rest."""
    if not content.lstrip().startswith(reasoning.open):
        return None, content
    thought, mark, rest = content.lstrip().removeprefix(reasoning.open).partition(reasoning.close)
    return (thought.strip("\n"), rest.lstrip("\n")) if mark else (None, content)


def _template_call(
    call: Mapping[str, Any], ids: Mapping[str, str], as_text: bool
) -> dict[str, Any]:
    """Return a call for the template, its arguments as an object or as JSON text."""
    function = call["function"]
    arguments = function["arguments"] or "{}"
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        found = arguments
    if as_text or not isinstance(found, dict):
        found = arguments
    converted = {**call, "function": {**function, "arguments": found}}
    if (call_id := call.get("id")) is not None:
        converted["id"] = ids.get(call_id, call_id)
    return converted


class AddedTokenSplitter:
    """Splits strings that a tokenizer would parse as added tokens."""

    def __init__(self, added_tokens: Iterable[str]) -> None:
        tokens = {token for token in added_tokens if len(token) > 1 and token.strip(_BLANKS)}
        firsts = [
            f"{re.escape(first)}(?={_any_of(token[1:] for token in alike)})"
            for first, alike in groupby(sorted(tokens), key=itemgetter(0))
        ]
        self._first = re.compile("|".join(firsts) or "(?!)")  # character of a token
        self._beginnings = frozenset(token[:n] for token in tokens for n in range(1, len(token)))
        self._longest = max(map(len, tokens), default=1)

    def split(self, value: Any, nonce: str) -> Any:
        """Return a JSON value in which no string, key or value, contains an added token or ends
        with the beginning of one: the nonce is inserted after the first character."""
        match value:
            case str():
                return self._split(value, nonce)
            case Mapping():
                return {self.split(k, nonce): self.split(v, nonce) for k, v in value.items()}
            case list() | tuple():
                return [self.split(each, nonce) for each in value]
            case _:
                return value

    def _split(self, text: str, nonce: str) -> str:
        text = self._first.sub(rf"\g<0>{nonce}", text)
        end = text[-self._longest :]
        if any(end[at:] in self._beginnings for at in range(len(end))):
            text += nonce
        return text


_BLANKS = " \t\r\n\u2581"
"""Some models have runs of them as tokens, which control nothing. U+2581 is a blank there."""


def _any_of(strings: Iterable[str]) -> str:
    """Return a pattern that matches where one of these strings begins, in a time that does not
    depend on how many there are: what begins alike is compared once. With an alternation of all,
    models with thousands of added tokens took 10 to 90 µs for each character of a prompt."""
    pieces = []
    for _, group in groupby(sorted(strings), key=itemgetter(0)):
        alike = list(group)
        beginning = commonprefix(alike)  # noqa: RUF071 - of characters
        rest = "" if beginning in alike else _any_of(text[len(beginning) :] for text in alike)
        pieces.append(re.escape(beginning) + (f"(?:{rest})" if rest else ""))
    return "|".join(pieces)


def _variables(tokenizer: TokenizerWrapper, text: str | None) -> frozenset[str]:
    """Return the variables that a template reads.

    Raises:
        ModelError: the template cannot be parsed.
    """
    function = getattr(tokenizer, "_chat_template", None)  # mlx-lm's own, for some families
    if function is not None:
        return frozenset(inspect.signature(function).parameters) - {"messages", "conversation"}
    template = getattr(tokenizer, "chat_template", None) if text is None else text
    if template is None:
        return frozenset()
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols", _Generation])
    try:
        found = meta.find_undeclared_variables(environment.parse(template))
    except TemplateSyntaxError as error:
        raise ModelError(
            f"the chat template has an error in line {error.lineno}: {error.message}"
        ) from None
    except RecursionError:
        raise ModelError("the chat template is nested too deeply") from None
    return frozenset(found) - _FUNCTIONS - set(tokenizer.special_tokens_map)
