"""A loaded model with its tokenizer, and the steps of loading it."""

import logging
import math
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model as _load_network

from shared.errors import ModelError
from shared.messages.model_status import ABILITIES
from worker.answer.call_ids import WRITE_ID
from worker.answer.control import AddedToken
from worker.answer.formats.known import TOOL_FORMATS
from worker.answer.model_output_format import (
    MESSAGE_FORMATS,
    PLAIN_FORMAT,
    ModelOutputFormat,
    find_format,
)
from worker.answer.text import Decode
from worker.engine.adapter_layers import apply_adapter
from worker.engine.batching_verdicts import TOGETHER, BatchingVerdict, BatchingVerdictStore
from worker.engine.caches import CacheLayout, evaluate
from worker.engine.context_length import ContextLength, find_context_length
from worker.engine.embedding.kind import embedding_kind
from worker.engine.embedding.model import EmbeddingModel, load_embedding_model
from worker.engine.load_errors import Stage, loading_error
from worker.engine.model_tokenizer import ModelTokenizer, load_tokenizer
from worker.engine.named_templates import NamedTemplates, template_text
from worker.engine.output_layer import OutputLayer
from worker.engine.prefill_cost import PrefillCost
from worker.engine.probe import find_verdict
from worker.grammar.compiler import GrammarCompiler
from worker.link.orders import LoadModel
from worker.models.adapters import find_unused_adapters, inspect_adapter
from worker.models.file_reading import read_object
from worker.models.files import check_config, fingerprint

_MAX_CONFIG_BYTES = 16_000_000
_log = logging.getLogger(__name__)

_TOKENIZER_WAIT_S = 0.01
_FEW_TOKENS, _MANY_TOKENS = 8, 128
_MAX_UNNAMED = 3


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that the engine has loaded.

    Attributes:
        tokenizer, replay_decode: belong to the thread that prepares prompts.
        decode: belongs to the engine thread and has its own copy of the tokenizer, because the
            library's tokenizers fail if two threads use one.
        end_ids: the tokens that end an answer.
        layout: of its KV cache.
        prefill_speed: measured while loading, then updated by every pass.
        output: computes the logits of single positions; None if the network does not allow it.
        fingerprint: of its weights; see `worker.models.files`.
        format: of its answers.
        templates: belong to the thread that prepares prompts; None without a chat template.
        grammars: belong to that thread, too; None if the tokenizer supports none.
        no_grammars: the reason for that.
        warnings: sentences for operators about what was assumed or left out.
        verdict: the batching verdict; if it is `alone`, `layout.allows_batching` is False.
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
    prefill_speed: PrefillCost
    fingerprint: str = ""
    output: OutputLayer | None = None
    format: ModelOutputFormat = PLAIN_FORMAT
    templates: NamedTemplates | None = None
    grammars: GrammarCompiler | None = None
    no_grammars: str = ""
    warnings: tuple[str, ...] = ()
    verdict: BatchingVerdict = TOGETHER

    @property
    def abilities(self) -> list[str]:
        """The abilities of `ModelStatus`."""
        can = {
            "tools": self.grammars is not None and self.format.can_call,
            "schema": self.grammars is not None,
            "reasoning": self.format.can_reason,
            "continuation": self.templates is not None and self.templates.continues,
            "embedding": False,
            "rerank": False,
        }
        return [ability for ability in ABILITIES if can[ability]]


class ModelLoadJob:
    """Loads a model in small steps, so that other models can decode in between. Belongs to the
    engine thread.

    Attributes:
        progress: from 0 to 1.
    """

    def __init__(self, order: LoadModel) -> None:
        self.order = order
        self.progress = 0.0
        self._steps = _loading_steps(order)

    def advance(self, seconds: float) -> LoadedModel | EmbeddingModel | None:
        """Continue for about `seconds`, and at least one step; return the model once it is loaded.

        Raises:
            ModelError: says what is wrong with which file.
        """
        until = time.perf_counter() + seconds
        while True:
            try:
                self.progress = next(self._steps)
            except StopIteration as stop:
                return cast(LoadedModel | EmbeddingModel, stop.value)
            if time.perf_counter() >= until:
                return None

    def close(self) -> None:
        """Abandon loading."""
        self._steps.close()


def _load_encoder(folder: Path, order: LoadModel) -> EmbeddingModel:
    model = load_embedding_model(folder, compares=order.compares_embeddings)
    if model.kind == "classification" and model.dimensions != 1:
        raise ModelError(
            f"{folder}: it is a classifier of {model.dimensions} labels; rerankers, which have "
            "one, are served"
        )
    return model


def load_model(order: LoadModel) -> LoadedModel:
    """Load a model that generates, in one call.

    Raises:
        ModelError: says what is wrong with which file.
    """
    model = ModelLoadJob(order).advance(math.inf)
    assert isinstance(model, LoadedModel)
    return model


def _loading_steps(
    order: LoadModel,
) -> Generator[float, None, LoadedModel | EmbeddingModel]:
    """Load weights and tokenizer and measure some passes; yield the progress after each step."""
    yield 0.0
    folder = Path(order.path)
    check_config(folder / "config.json", order.path, trust_remote_code=order.trust_remote_code)
    stage: Stage = "network"
    try:
        config = read_object(folder / "config.json", max_bytes=_MAX_CONFIG_BYTES)
        if embedding_kind(folder, config) is not None:
            return _load_encoder(folder, order)
        with ThreadPoolExecutor(1, "tokenizer") as thread:
            network, config = _load_network(
                folder, lazy=True, trust_remote_code=order.trust_remote_code
            )
            loaded = thread.submit(load_tokenizer, order, config)
            if order.adapter is not None:
                apply_adapter(network, inspect_adapter(Path(order.adapter)))
            yield from _materialise(network)
            while not loaded.done():
                wait([loaded], timeout=_TOKENIZER_WAIT_S)
                yield 1.0
            stage = "run"
            return (yield from _assemble(order, network, loaded.result(), config))
    except (Exception, SystemExit) as error:  # third-party files can raise anything
        raise loading_error(error, folder, stage) from error


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
    order: LoadModel, network: Any, loaded: ModelTokenizer, config: dict[str, Any]
) -> Generator[float, None, LoadedModel]:
    tokenizer = loaded.tokenizer
    answers = _find_format(order, tokenizer)
    write_id = WRITE_ID.get(answers.tools.name) if answers.tools is not None else None
    templates = NamedTemplates(
        tokenizer,
        answers.reasoning,
        order.template_values,
        write_id,
        problem=loaded.template_problem,
    )
    for name in sorted(order.template_values.keys() - templates.variables):
        _log.warning("%s: chat_template_kwargs: its template does not read %s", order.path, name)
    if order.tool_format is None and not templates.knows_tools and not answers.can_call:
        answers = replace(answers, tools=TOOL_FORMATS["hermes"])
    layout = CacheLayout(network)
    context = find_context_length(
        config, getattr(tokenizer, "model_max_length", None), grows=layout.token_bytes > 0
    )
    context_tokens = context.limited(order.max_context_tokens)
    speed = yield from _measure_prefill(network, layout, min(_MANY_TOKENS, context_tokens))
    adapter = Path(order.adapter) if order.adapter is not None else None
    model_fingerprint = fingerprint(Path(order.path), adapter)
    store = BatchingVerdictStore(Path(order.verdicts_file) if order.verdicts_file else None)
    verdict = yield from find_verdict(
        network, layout, loaded.vocabulary_size, context_tokens, speed, store, model_fingerprint
    )
    layout.allows_batching = layout.allows_batching and verdict.batching == "together"
    if verdict.probe_s is not None:
        _log.info(
            "%s: rows %s, probed in %.1f s%s", order.path, verdict.batching, verdict.probe_s,
            f": {verdict.reason}" if verdict.reason else "",
        )  # fmt: skip
    return LoadedModel(
        network=network,
        tokenizer=tokenizer,
        replay_decode=loaded.decode,
        decode=loaded.decode_copy,
        end_ids=loaded.end_ids,
        vocabulary_size=loaded.vocabulary_size,
        max_context_tokens=context_tokens,
        memory_bytes=sum(array.nbytes for array in _weights(network)),
        layout=layout,
        prefill_speed=speed,
        fingerprint=model_fingerprint,
        output=OutputLayer.of(network, layout),
        format=answers,
        templates=templates,
        grammars=loaded.grammars,
        no_grammars=loaded.no_grammars,
        warnings=_warnings(order, context, templates),
        verdict=verdict,
    )


def _warnings(
    order: LoadModel, context: ContextLength, templates: NamedTemplates
) -> tuple[str, ...]:
    """Return, and log, warnings for operators about a model that is served nevertheless."""
    adapter = Path(order.adapter) if order.adapter is not None else None
    assumed = context.warning(order.max_context_tokens)
    unnamed = [
        f"{folder} contains an adapter, which is not loaded; set it as `adapter` of this model"
        for folder in find_unused_adapters(Path(order.path), adapter)
    ]
    found = (
        *([assumed] if assumed is not None else []),
        *templates.warnings,
        *unnamed[:_MAX_UNNAMED],
    )
    for warning in found:
        _log.warning("%s: %s", order.path, warning)
    return found


def _find_format(order: LoadModel, tokenizer: TokenizerWrapper) -> ModelOutputFormat:
    added = {
        token.content: AddedToken(token_id, token.special)
        for token_id, token in tokenizer.added_tokens_decoder.items()
    }
    answers = find_format(
        template_text(tokenizer),
        added,
        tool_format=order.tool_format,
        reasoning_format=order.reasoning_format,
    )
    if order.tool_format in MESSAGE_FORMATS and answers.messages is None:
        raise ModelError(
            f"tool_format: its tokenizer does not have the tokens of {order.tool_format}"
        )
    return answers


def _measure_prefill(
    network: Any, layout: CacheLayout, many: int
) -> Generator[float, None, PrefillCost]:
    """Measure passes of few and of many tokens; this also compiles kernels and maps pages before
    the first request."""
    few = min(_FEW_TOKENS, max(1, many // 2))
    took_s = {few: math.inf, many: math.inf}
    for tokens in (few, few, many, many):
        cache = layout.new_cache(1, tokens)
        started = time.perf_counter()
        network(mx.zeros((1, tokens), dtype=mx.uint32), cache=cache)
        evaluate(cache)
        took_s[tokens] = min(took_s[tokens], time.perf_counter() - started)
        yield 1.0
    return PrefillCost.from_measurements(few, took_s[few], many, took_s[many])
