"""The chat templates of a tokenizer: one for all conversations, or several by name.

Command-R+ and Hermes 3 have several. The choice is that of transformers (`get_chat_template` in
tokenization_utils_base.py): `tool_use` if a request has tools, else `default`. Templates of other
names (`rag`) need documents, which no request has.
"""

from collections.abc import Mapping
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from shared.errors import InvalidRequest, ModelError
from worker.answer.call_ids import WriteId
from worker.answer.reasoning import ReasoningFormat
from worker.engine.chat_template import ChatTemplate

_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_SHOWN_CHARACTERS = 200


def template_text(tokenizer: TokenizerWrapper) -> str:
    """Return the text of all templates of a tokenizer that may be rendered, in which formats are
    detected by their marks; empty without a template."""
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, Mapping):
        return template if isinstance(template, str) else ""
    named = [template.get(name) for name in (_DEFAULT, _WITH_TOOLS)]
    return "\n".join(text for text in named if isinstance(text, str))


class NamedTemplates:
    """The templates that conversations are rendered with. A model whose templates cannot be used
    still serves plain prompts.

    Belongs to the thread that prepares prompts.

    Attributes:
        warnings: sentences about templates that cannot be used.

    Args:
        tokenizer, reasoning, defaults, write_id: see `ChatTemplate`.
        problem: why the tokenizer's template was ignored, if it was.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        reasoning: ReasoningFormat | None,
        defaults: Mapping[str, Any],
        write_id: WriteId | None = None,
        *,
        problem: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._templates: dict[str, ChatTemplate] = {}
        self._problems: dict[str, str] = {} if problem is None else {_DEFAULT: problem}
        for name, text in self._found().items():
            try:
                self._templates[name] = ChatTemplate(
                    tokenizer, reasoning, defaults, write_id, text=text
                )
            except ModelError as error:
                self._problems[name] = error.message[:_SHOWN_CHARACTERS]

    def _found(self) -> Mapping[str, str | None]:
        """Return the templates by name; None stands for the tokenizer's only template."""
        if not self._tokenizer.has_chat_template:
            return {}
        if getattr(self._tokenizer, "_chat_template", None) is not None:
            return {_DEFAULT: None}  # mlx-lm renders it with a function
        template = getattr(self._tokenizer, "chat_template", None)
        if template is None or isinstance(template, str):
            return {_DEFAULT: None}
        if not isinstance(template, Mapping):
            self._problems[_DEFAULT] = (
                f"chat_template of the tokenizer is neither a string nor a list of named "
                f"templates, but {template!r:.80}"
            )
            return {}
        named = {name: template[name] for name in (_DEFAULT, _WITH_TOOLS) if name in template}
        if _DEFAULT not in named:
            self._problems[_DEFAULT] = (
                f"of its chat templates ({', '.join(map(str, sorted(template, key=str)))[:80]}) "
                f"none is named {_DEFAULT}"
            )
        for name, text in named.items():
            if not isinstance(text, str):
                self._problems[name] = f"its chat template {name} is not a string, but {text!r:.80}"
        return {name: text for name, text in named.items() if isinstance(text, str)}

    @property
    def warnings(self) -> list[str]:
        return [
            f"{problem}; {'requests with tools' if name == _WITH_TOOLS else 'messages'} are "
            "rejected, prompts are served"
            for name, problem in self._problems.items()
        ]

    @property
    def variables(self) -> frozenset[str]:
        """The variables that any of the templates reads."""
        return frozenset[str]().union(*(each.variables for each in self._templates.values()))

    @property
    def continues(self) -> bool:
        """Whether an answer may continue a last message of the assistant."""
        default = self._templates.get(_DEFAULT)
        return default is not None and default.continues

    @property
    def knows_tools(self) -> bool:
        return any(each.knows_tools for each in self._templates.values())

    def choose(self, *, with_tools: bool) -> ChatTemplate:
        """Return the template for a request.

        Raises:
            InvalidRequest: there is none, or it cannot be used; the message says why.
        """
        name = _WITH_TOOLS if with_tools and self._has(_WITH_TOOLS) else _DEFAULT
        if name in self._templates:
            return self._templates[name]
        problem = self._problems.get(name)
        reason = f"this model does not accept messages: {problem}" if problem else ""
        raise InvalidRequest(
            f"messages: {reason or 'this model has no chat template'}; use prompt", param="messages"
        )

    def _has(self, name: str) -> bool:
        return name in self._templates or name in self._problems
