"""A model in memory with its tokenizer, and how it gets there."""

import json
import logging
import math
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model as _load_network
from mlx_lm.utils import load_tokenizer

from shared.errors import ModelError
from shared.messages.events import ABILITIES
from worker.answer.call_ids import WRITE_ID
from worker.answer.control import AddedToken
from worker.answer.format import PLAIN_FORMAT, AnswerFormat, find_format
from worker.answer.formats.known import HARMONY, TOOL_FORMATS
from worker.answer.text import Decode
from worker.engine.caches import CacheLayout, evaluate
from worker.engine.chat_template import ChatTemplate
from worker.engine.kept_verdicts import KeptVerdicts
from worker.engine.output_layer import OutputLayer
from worker.engine.prefill_speed import PrefillSpeed
from worker.engine.probe import find_verdict
from worker.engine.verdicts import TOGETHER, Verdict
from worker.grammar.compiler import GrammarCompiler
from worker.link.messages import LoadModel
from worker.models.fingerprint import fingerprint

_log = logging.getLogger(__name__)

_DEFAULT_CONTEXT_TOKENS = 4096
_TOKENIZER_WAIT_S = 0.01
_FEW_TOKENS, _MANY_TOKENS = 8, 128


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine keeps of a model.

    Attributes:
        tokenizer, replay_decode: for the thread that prepares prompts.
        decode: for the engine thread; it has a tokenizer of its own, because the library's
            fail when two threads use one.
        end_ids: the tokens that end an answer.
        layout: of its KV cache.
        prefill_speed: as measured, first while loading.
        output: for the logits of single positions; None where they cannot be had, or not be used.
        fingerprint: of its weights; see `worker.models.fingerprint`.
        format: of its answers.
        template: for the thread that prepares prompts; None where it has none.
        grammars: for that thread, too; None where the tokenizer does not allow any.
        verdict: on its rows; where it says `alone`, the layout does, too.
    """

    network: Any
    tokenizer: TokenizerWrapper
    replay_decode: Decode
    decode: Decode
    end_ids: frozenset[int]
    vocabulary_size: int
    max_context_tokens: int
    memory_bytes: int
    layout: CacheLayout
    prefill_speed: PrefillSpeed
    fingerprint: str = ""
    output: OutputLayer | None = None
    format: AnswerFormat = PLAIN_FORMAT
    template: ChatTemplate | None = None
    grammars: GrammarCompiler | None = None
    verdict: Verdict = TOGETHER

    @property
    def abilities(self) -> list[str]:
        """As `ModelStatus` has them."""
        can = {
            "tools": self.grammars is not None and self.format.can_call,
            "schema": self.grammars is not None,
            "reasoning": self.format.can_reason,
            "continuation": self.template is not None and self.template.continues,
        }
        return [ability for ability in ABILITIES if can[ability]]


class Loading:
    """A model on its way into memory, a little at a time, so that others can decode in between.
    Belongs to the engine thread.

    Attributes:
        progress: from 0 to 1.
    """

    def __init__(self, order: LoadModel) -> None:
        self.order = order
        self.progress = 0.0
        self._steps = _loading_steps(order)

    def advance(self, seconds: float) -> LoadedModel | None:
        """Go on for about so long, and at least a step; returns the model once it is there.

        Raises:
            ModelError: says what is wrong with which file.
        """
        until = time.perf_counter() + seconds
        while True:
            try:
                self.progress = next(self._steps)
            except StopIteration as stop:
                return cast(LoadedModel, stop.value)
            if time.perf_counter() >= until:
                return None

    def close(self) -> None:
        """Give up."""
        self._steps.close()


def load_model(order: LoadModel) -> LoadedModel:
    """Load a model at one go.

    Raises:
        ModelError: says what is wrong with which file.
    """
    model = Loading(order).advance(math.inf)
    assert model is not None
    return model


def _loading_steps(order: LoadModel) -> Generator[float, None, LoadedModel]:
    """Load weights and tokenizer and measure some passes; yields the progress after each step."""
    yield 0.0
    try:
        # Takes a second, and needs no device.
        with ThreadPoolExecutor(1, "tokenizer") as thread:
            network, config = _load_network(
                Path(order.path), lazy=True, trust_remote_code=order.trust_remote_code
            )
            end_ids = config.get("eos_token_id")
            loaded = thread.submit(_load_tokenizer, order, end_ids, config)
            yield from _materialise(network)
            while not loaded.done():
                wait([loaded], timeout=_TOKENIZER_WAIT_S)
                yield 1.0
            tokenizer, grammars = loaded.result()
            return (yield from _assemble(order, network, tokenizer, grammars, config))
    except ModelError as error:
        raise ModelError(_with_place(order.path, error.message)) from None
    except Exception as error:  # anything may be wrong with files from outside
        raise ModelError(f"{order.path}: {_reason(error)}") from error


def _load_tokenizer(
    order: LoadModel, end_ids: Any, config: dict[str, Any]
) -> tuple[TokenizerWrapper, GrammarCompiler | None]:
    trust = {"trust_remote_code": True} if order.trust_remote_code else None
    tokenizer = cast(
        TokenizerWrapper, load_tokenizer(Path(order.path), trust, eos_token_ids=end_ids)
    )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer, None
    ends = [token for token in tokenizer.eos_token_ids if token is not None]
    size = _vocabulary_size(config, tokenizer)
    try:
        return tokenizer, GrammarCompiler(backend.to_str(), size, ends)
    except ValueError as error:  # without grammars it can still answer
        _log.warning("%s: no tools, schemas or budgets: its tokenizer: %s", order.path, error)
        return tokenizer, None


def _vocabulary_size(config: dict[str, Any], tokenizer: TokenizerWrapper) -> int:
    named = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return int(named or len(tokenizer))


def _materialise(network: Any) -> Iterator[float]:
    """Read the lazily loaded weights from disk, yielding the share of bytes done."""
    arrays = _weights(network)
    total = sum(array.nbytes for array in arrays) or 1
    done = 0
    for array in arrays:
        mx.eval(array)
        done += array.nbytes
        yield done / total


def _weights(network: Any) -> list[mx.array]:
    return [cast(mx.array, leaf) for _, leaf in cast(list[Any], tree_flatten(network.parameters()))]


def _assemble(
    order: LoadModel,
    network: Any,
    tokenizer: TokenizerWrapper,
    grammars: GrammarCompiler | None,
    config: dict[str, Any],
) -> Generator[float, None, LoadedModel]:
    own_context = _context_tokens(config)
    answers = _find_format(order, tokenizer)
    write_id = WRITE_ID.get(answers.tools.name) if answers.tools is not None else None
    template = ChatTemplate(tokenizer, answers.reasoning, order.template_values, write_id)
    for name in sorted(order.template_values.keys() - template.variables):
        _log.warning("%s: chat_template_kwargs: its template does not read %s", order.path, name)
    if order.tool_format is None and not template.knows_tools and not answers.can_call:
        answers = replace(answers, tools=TOOL_FORMATS["hermes"])
    limit = order.max_context_tokens or own_context
    vocabulary = _vocabulary_size(config, tokenizer)
    end_ids = frozenset(tokenizer.eos_token_ids)
    if not all(0 <= token < vocabulary for token in end_ids):
        raise ModelError(
            f"{order.path}: eos_token_id {sorted(end_ids)} lies outside the vocabulary of "
            f"{vocabulary} tokens"
        )
    layout = CacheLayout(network)
    decoding = getattr(tokenizer, "backend_tokenizer", None) or tokenizer
    context_tokens = min(limit, own_context)
    speed = yield from _measure_prefill(network, layout, min(_MANY_TOKENS, context_tokens))
    marked = fingerprint(Path(order.path))
    kept = KeptVerdicts(Path(order.verdicts_file) if order.verdicts_file else None)
    verdict = yield from find_verdict(
        network, layout, vocabulary, context_tokens, speed, kept, marked
    )
    layout.allows_batching = verdict.batching == "together"
    if verdict.probe_s is not None:
        _log.info(
            "%s: rows %s, probed in %.1f s%s", order.path, verdict.batching, verdict.probe_s,
            f": {verdict.reason}" if verdict.reason else "",
        )  # fmt: skip
    return LoadedModel(
        network=network,
        tokenizer=tokenizer,
        replay_decode=_decoder(decoding),
        decode=_decoder(deepcopy(decoding)),
        end_ids=end_ids,
        vocabulary_size=vocabulary,
        max_context_tokens=context_tokens,
        memory_bytes=sum(array.nbytes for array in _weights(network)),
        layout=layout,
        prefill_speed=speed,
        fingerprint=marked,
        output=OutputLayer.of(network, layout),
        format=answers,
        template=template,
        grammars=grammars,
        verdict=verdict,
    )


def _find_format(order: LoadModel, tokenizer: TokenizerWrapper) -> AnswerFormat:
    template = getattr(tokenizer, "chat_template", None)
    added = {
        token.content: AddedToken(token_id, token.special)
        for token_id, token in tokenizer.added_tokens_decoder.items()
    }
    answers = find_format(
        template if isinstance(template, str) else "",
        added,
        tool_format=order.tool_format,
        reasoning_format=order.reasoning_format,
    )
    if order.tool_format == HARMONY and not answers.harmony:
        raise ModelError("tool_format: its tokenizer does not have the tokens of harmony")
    return answers


def _context_tokens(config: dict[str, Any]) -> int:
    for section in (config, config.get("text_config") or {}):
        for key in ("max_position_embeddings", "max_seq_len", "max_sequence_length", "n_positions"):
            if isinstance(tokens := section.get(key), int):
                if tokens < 1:
                    raise ModelError(f"config.json: {key} is {tokens}")
                return tokens
    return _DEFAULT_CONTEXT_TOKENS


def _decoder(tokenizer: Any) -> Decode:
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))


def _measure_prefill(
    network: Any, layout: CacheLayout, many: int
) -> Generator[float, None, PrefillSpeed]:
    """Passes of few and of many tokens; so the first request finds kernels compiled and pages
    mapped, too."""
    few = min(_FEW_TOKENS, max(1, many // 2))
    took_s = {few: math.inf, many: math.inf}
    for tokens in (few, few, many, many):
        cache = layout.new_cache(1, tokens)
        started = time.perf_counter()
        network(mx.zeros((1, tokens), dtype=mx.uint32), cache=cache)
        evaluate(cache)
        took_s[tokens] = min(took_s[tokens], time.perf_counter() - started)
        yield 1.0
    return PrefillSpeed.from_two(few, took_s[few], many, took_s[many])


def _with_place(path: str, message: str) -> str:
    return message if message.startswith(path) else f"{path}: {message}"


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"no such file: {error.filename or error}"
    if isinstance(error, json.JSONDecodeError):
        return f"no valid JSON: {error}"
    return f"{type(error).__name__}: {error}"
