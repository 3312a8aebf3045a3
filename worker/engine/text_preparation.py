"""Texts to embed or to score, as tokens: checked before they wait for a pass."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.errors import InvalidRequest, RequestError
from worker.engine.embedding.model import EmbeddingModel
from worker.engine.prompt_tokens import TooManyTokens
from worker.link.orders import EmbeddingOptions, SubmitSequence

RANKED_BY_EMBEDDINGS = (
    "the model has no head that scores pairs: scores are the cosine similarity of embeddings, as "
    "`rerank: embeddings` in its settings allows"
)


class QueryTokens(NamedTuple):
    """A query to whose embedding that of a text is compared; `unpooled_tokens` as of the text."""

    token_ids: tuple[int, ...]
    unpooled_tokens: int


@dataclass(frozen=True, slots=True)
class PreparedText:
    """A text ready to be embedded or scored.

    Attributes:
        token_ids: of a text to score by a classifier, the query's before it.
        unpooled_tokens: at its beginning, of a prompt that is not part of its embedding.
        second_from: of a text to score by a classifier: where it begins, as of `TokenizedPair`.
        query: of a text to score by its embedding.
        warnings: for who sent it.
    """

    order: SubmitSequence
    token_ids: list[int]
    unpooled_tokens: int = 0
    second_from: int | None = None
    query: QueryTokens | None = None
    warnings: list[str] = field(default_factory=list)


def prepare_text(
    order: SubmitSequence, model: EmbeddingModel, pause: Callable[[], None] = lambda: None
) -> PreparedText:
    """Tokenise and check one text.

    Args:
        pause: called now and then while a long text is tokenised.

    Raises:
        RequestError: the order is to generate, the text is too long or has unknown tokens, or the
            model cannot embed or score it as requested.
    """
    options = order.embedding
    verb = "scores" if model.kind == "classification" else "embeds"
    if options is None:
        raise RequestError(f"{order.model} {verb} texts, and generates none", code="not_supported")
    _check_length("query", options.query or "", model, pause)
    if not options.truncate:
        _check_length("input", order.text or "", model, pause)
    if options.query is not None:
        return _prepare_to_score(order, options, options.query, model)
    if model.kind == "classification":
        raise RequestError(
            f"{order.model} scores texts for a `query`, and does not embed", code="not_supported"
        )
    return _prepare_to_embed(order, options, model)


def _prepare_to_embed(
    order: SubmitSequence, options: EmbeddingOptions, model: EmbeddingModel
) -> PreparedText:
    if options.dimensions is not None and options.dimensions > model.dimensions:
        raise InvalidRequest(
            f"dimensions: the model's embeddings have {model.dimensions}", param="dimensions"
        )
    token_ids, unpooled_tokens = order.token_ids, 0
    if token_ids is None:
        token_ids = model.tokenize(order.text or "", options.prompt_name)
        unpooled_tokens = model.unpooled_tokens(options.prompt_name)
    token_ids, warnings = _within_limit(token_ids, order, options, model, options.prompt_name)
    return PreparedText(order, token_ids, unpooled_tokens, warnings=warnings)


def _prepare_to_score(
    order: SubmitSequence, options: EmbeddingOptions, query: str, model: EmbeddingModel
) -> PreparedText:
    text = order.text or ""
    if model.kind == "classification":
        return _prepare_pair(order, options, query, text, model)
    if not model.compares:
        raise RequestError(
            f"{order.model} embeds texts, and does not score them; `rerank: embeddings` in its "
            "settings ranks by embeddings",
            code="not_supported",
        )
    name = model.prompts.for_query
    query_ids = model.tokenize(query, name)
    _check_tokens(query_ids, model, "query")
    if len(query_ids) > model.max_tokens:
        raise _too_long("query", len(query_ids), model)
    tokens = QueryTokens(tuple(query_ids), model.unpooled_tokens(name))
    name = model.prompts.for_document
    token_ids, warnings = _within_limit(model.tokenize(text, name), order, options, model, name)
    unpooled_tokens = model.unpooled_tokens(name)
    warnings = [RANKED_BY_EMBEDDINGS, *warnings]
    return PreparedText(order, token_ids, unpooled_tokens, query=tokens, warnings=warnings)


def _prepare_pair(
    order: SubmitSequence, options: EmbeddingOptions, query: str, text: str, model: EmbeddingModel
) -> PreparedText:
    pair, warnings = model.tokenize_pair(query, text), []
    if len(pair.ids) > model.max_tokens:
        alone = model.count_query_tokens(query)
        if alone >= model.max_tokens:
            raise _too_long("query", alone, model)
        if not options.truncate:
            raise _too_long("input", len(pair.ids), model, "with the query ")
        pair = model.tokenize_pair(query, text, truncated=True)
        warnings = [_cut(model)]
    _check_tokens(pair.ids, model, "input")
    return PreparedText(order, pair.ids, second_from=pair.second_from, warnings=warnings)


def _check_length(param: str, text: str, model: EmbeddingModel, pause: Callable[[], None]) -> None:
    try:
        model.check_length(text, pause)
    except TooManyTokens as error:
        raise _too_long(param, error.at_least, model, "more than ") from None


def _within_limit(
    token_ids: list[int],
    order: SubmitSequence,
    options: EmbeddingOptions,
    model: EmbeddingModel,
    prompt_name: str | None,
) -> tuple[list[int], list[str]]:
    """Return the tokens, cut if they may be, and warnings.

    Raises:
        RequestError: there are none, or too many.
    """
    _check_tokens(token_ids, model, "input")
    if len(token_ids) <= model.max_tokens:
        return token_ids, []
    if not options.truncate:
        raise _too_long("input", len(token_ids), model)
    if order.text is None:
        return token_ids[: model.max_tokens], [_cut(model)]
    return model.tokenize(order.text, prompt_name, truncated=True), [_cut(model)]


def _check_tokens(token_ids: list[int], model: EmbeddingModel, param: str) -> None:
    """A tokenizer may have more tokens than the network has embeddings.

    Raises:
        InvalidRequest: there are no tokens, or one is outside the vocabulary.
    """
    if not token_ids:
        raise InvalidRequest(f"{param}: the text has no tokens", param=param)
    if (highest := max(token_ids)) >= model.vocabulary_size:
        raise InvalidRequest(
            f"{param}: token id {highest} is outside the model's vocabulary of "
            f"{model.vocabulary_size}",
            param=param,
        )


def _too_long(param: str, tokens: int, model: EmbeddingModel, what: str = "") -> RequestError:
    verb = "scores" if model.kind == "classification" else "embeds"
    return RequestError(
        f"{param}: {what}{tokens} tokens; the model {verb} at most {model.max_tokens}",
        code="context_length_exceeded",
        param=param,
    )


def _cut(model: EmbeddingModel) -> str:
    return f"texts of more than {model.max_tokens} tokens were cut"
