"""From messages and tools to the tokens of a prompt, by the model's chat template.

Text from outside stays text: where a string of a message or tool holds what the tokenizer takes
for a token of its own (`<|im_end|>`, `</think>`), a nonce splits it before the template is
rendered, and the pieces are tokenised apart.
"""

import inspect
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, meta
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from mlx_lm.tokenizer_utils import TokenizerWrapper

from shared.errors import InvalidRequest, ModelError, RequestError
from worker.answer.call_ids import WriteId, written_ids
from worker.answer.reasoning import ReasoningFormat
from worker.engine.call_arguments import takes_text, with_text_arguments
from worker.engine.message_order import find_order, ordered
from worker.engine.native_tool_prompt import find_native_tool_prompt, with_native_tool_prompt
from worker.engine.tool_prompt import with_tools_as_text

_ROLES = {"developer": "system"}
"""OpenAI's newer name for a role that chat templates know by the older one."""
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""What templates call what was thought: each family another."""
_ALTERNATE = ("user", "assistant")
_END_CHARACTERS = 64
_FUNCTIONS = {*DEFAULT_NAMESPACE, "raise_exception", "strftime_now"}
"""What templates may call."""


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; it prints its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt.

    Attributes:
        end: the last characters of its text.
        closed_reasoning: the model is not to think: that is over already, or turned off.
        warnings: sentences about what of the request could not be done.
        changes: sentences about how messages were put into an order that the template takes.
    """

    token_ids: list[int]
    end: str
    closed_reasoning: bool = False
    warnings: Sequence[str] = ()
    changes: Sequence[str] = ()


class ChatTemplate:
    """Belongs to the thread that prepares prompts.

    Attributes:
        variables: what the template reads beyond what it sets itself.
        continues: an answer may go on with a last message of the assistant's.

    Args:
        reasoning: how the model marks it.
        defaults: what the template is given where a request does not say otherwise.
        write_id: the id of a call as the template demands it.
        text: the template, where the tokenizer has several by name; else it has but one.

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
        self._guard = Guard(added)
        self._tool_words = find_native_tool_prompt(
            text or getattr(tokenizer, "chat_template", None), added
        )
        self._text_arguments = False
        self._text_arguments = takes_text(self._tried)
        self.order = find_order(self._tried)
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
    ) -> Rendered:
        """The prompt of a conversation, with the assistant's turn opened.

        Args:
            tools: functions as OpenAI describes them.
            values: for variables of the template, beyond messages and tools.
            continues: the last message is the assistant's, and the answer goes on with it.

        Raises:
            RequestError: the template cannot be rendered with them.
        """
        ids = written_ids(messages, self._write_id)
        turns = [self._turn(message, ids) for message in messages]
        known: dict[str, Any] = {**self._defaults, **values}
        known.setdefault("enable_thinking", self._reasoning is not None)
        if self.knows_tools and tools:
            known["tools"] = [{"type": "function", "function": dict(tool)} for tool in tools]
        elif not self.knows_tools and self._tool_words is None:
            turns = with_tools_as_text(turns, tools)
        turns, changes = ordered(turns, self.order)
        nonce = secrets.token_hex(8)
        turns, known = self._guard.split(turns, nonce), self._guard.split(known, nonce)
        if not self.knows_tools and self._tool_words is not None:
            turns = with_native_tool_prompt(
                turns, self._guard.split(tools, nonce), self._tool_words
            )
        if continues:
            text = self._continued(turns, known)
        else:
            text = self._rendered(turns, known)
        pieces = text.split(nonce)
        token_ids = [
            token
            for piece in pieces
            if piece
            for token in self._tokenizer.encode(piece, add_special_tokens=False)
        ]
        if continues:
            return Rendered(token_ids, "", closed_reasoning=True, changes=changes)
        end = pieces[-1][-_END_CHARACTERS:]
        closed = known.get("enable_thinking") is False or known.get("thinking") is False
        if self._reasoning is not None:
            closed |= end.rstrip().endswith(self._reasoning.close)
        return Rendered(token_ids, end, closed, changes=changes)

    def _can_continue(self) -> bool:
        texts = ("canary1", "canary2")
        turns = [
            {"role": role, "content": each} for role, each in zip(_ALTERNATE, texts, strict=True)
        ]
        try:
            text = self._continued(turns, dict(self._defaults))
        except RequestError:
            return False
        return texts[0] in text and text.endswith(texts[1])

    def _continued(self, turns: list[dict[str, Any]], values: dict[str, Any]) -> str:
        """Up to the end of the last message's content."""
        end = secrets.token_hex(8)
        *before, last = turns
        marked = [*before, {**last, "content": last["content"] + end}]
        text, mark, _ = self._rendered(marked, values, opens=False).rpartition(end)
        if not mark:
            raise InvalidRequest(
                "continue_final_message: the model's chat template leaves the message out",
                param="continue_final_message",
            )
        return text

    def _tried(self, turns: list[dict[str, Any]]) -> str | None:
        """What the template makes of them, if anything."""
        if not self.knows_tools and self._tool_words is None:
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
                f"messages: the model's chat template refuses them: {error}", param="messages"
            ) from None
        except Exception as error:  # a template is a program from outside
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
                reasoning, turn["content"] = _parted(turn["content"], self._reasoning)
            if reasoning:
                turn.update(dict.fromkeys(_REASONING_KEYS, reasoning))
            if calls := turn.get("tool_calls"):
                turn["tool_calls"] = [_readable(call, ids, self._text_arguments) for call in calls]
        elif (call_id := turn.get("tool_call_id")) is not None:
            turn["tool_call_id"] = ids.get(call_id, call_id)
        return turn


def _parted(content: str, reasoning: ReasoningFormat) -> tuple[str | None, str]:
    """What an assistant's content begins with as reasoning, and the rest."""
    if not content.lstrip().startswith(reasoning.open):
        return None, content
    thought, mark, rest = content.lstrip().removeprefix(reasoning.open).partition(reasoning.close)
    return (thought.strip("\n"), rest.lstrip("\n")) if mark else (None, content)


def _readable(call: Mapping[str, Any], ids: Mapping[str, str], as_text: bool) -> dict[str, Any]:
    """A call whose arguments are an object, as most templates expect it; or their text."""
    function = call["function"]
    arguments = function["arguments"] or "{}"
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        found = arguments
    if as_text or not isinstance(found, dict):
        found = arguments
    readable = {**call, "function": {**function, "arguments": found}}
    if (call_id := call.get("id")) is not None:
        readable["id"] = ids.get(call_id, call_id)
    return readable


class Guard:
    """Splits strings where a tokenizer would see a token of its own."""

    def __init__(self, added_tokens: Iterable[str]) -> None:
        tokens = sorted({token for token in added_tokens if len(token) > 1}, key=len, reverse=True)
        self._tokens = tuple(tokens)
        self._first = frozenset(token[0] for token in tokens)
        self._any = re.compile("|".join(map(re.escape, tokens)) or "(?!)")
        self._beginnings = frozenset(token[:n] for token in tokens for n in range(1, len(token)))
        self._longest = max(map(len, tokens), default=1)

    def split(self, value: Any, nonce: str) -> Any:
        """A value of JSON in which no string, key or value, holds or begins a token: a nonce stands
        behind the first character."""
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
        begins = any(character in text for character in self._first)  # a model may have thousands
        if begins and any(token in text for token in self._tokens):
            text = self._any.sub(lambda found: f"{found[0][0]}{nonce}{found[0][1:]}", text)
        end = text[-self._longest :]
        if any(end[at:] in self._beginnings for at in range(len(end))):
            text += nonce
        return text


def _variables(tokenizer: TokenizerWrapper, text: str | None) -> frozenset[str]:
    """Raises ModelError for a template that no request could use."""
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
