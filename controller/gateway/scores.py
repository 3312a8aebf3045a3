"""Rerank in the form that Cohere's and Jina's APIs share, and vLLM's Score."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from controller.gateway.openai.messages import Short
from controller.gateway.text_requests import TextRequest, usage_body
from shared.client import Ranking, Scores
from shared.codec import StrictInput
from shared.messages.request import MAX_INPUTS

_Input = Annotated[str, Field(min_length=1)]
_SEVERAL = Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)
_Inputs = _Input | Annotated[list[_Input], _SEVERAL]


class RerankDocument(StrictInput):
    """A document as an object."""

    text: _Input


class RerankRequest(TextRequest):
    """`POST /v1/rerank`, and `/v2/rerank`."""

    query: str = Field(min_length=1, examples=["What is the capital of France?"])
    documents: Annotated[list[_Input | RerankDocument], _SEVERAL] = Field(
        examples=[["Berlin is in Germany.", "Paris is in France."]]
    )
    top_n: int | None = Field(None, ge=1, description="Return only the first ones of the ranking.")
    return_documents: bool = False
    rank_fields: list[Short] | None = Field(
        None, description="Only `text` is ranked; other fields of documents are not supported."
    )

    # Extension of the cluster.
    truncate: bool = Field(
        True, description="Cut documents that are too long for the model, instead of failing."
    )

    @model_validator(mode="after")
    def _only_text_is_ranked(self) -> Self:
        if self.rank_fields not in (None, ["text"]):
            raise ValueError("rank_fields: only `text` is supported")
        return self

    @property
    def inputs(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]


class ScoreRequest(TextRequest):
    """`POST /v1/score`."""

    text_1: _Inputs = Field(description="The query, or one for each text of `text_2`.")
    text_2: _Inputs = Field(description="The texts to score.")

    # Extension of the cluster.
    truncate: bool = Field(
        False, description="Cut texts of `text_2` that are too long, instead of failing."
    )

    @model_validator(mode="after")
    def _queries_match(self) -> Self:
        queries, inputs = self.query, self.inputs
        if isinstance(queries, list) and len(queries) != len(inputs):
            raise ValueError(
                f"text_1: {len(queries)} texts for {len(inputs)} of `text_2`; one, or one for "
                "each, is needed"
            )
        return self

    @property
    def query(self) -> str | list[str]:
        """One for all texts, or one for each."""
        if isinstance(self.text_1, list) and len(self.text_1) == 1:
            return self.text_1[0]
        return self.text_1

    @property
    def inputs(self) -> list[str]:
        return [self.text_2] if isinstance(self.text_2, str) else self.text_2


def ranking_body(
    ranking: Ranking, body: RerankRequest, *, request_id: str, model: str, version: str
) -> dict[str, Any]:
    """Return the body of an answer to `RerankRequest`.

    Args:
        version: of Cohere's API.
    """
    inputs = body.inputs
    results: list[dict[str, Any]] = []
    for each in ranking.results:
        result: dict[str, Any] = {"index": each.index, "relevance_score": each.score}
        if body.return_documents:
            result["document"] = {"text": inputs[each.index]}
        results.append(result)
    meta: dict[str, Any] = {
        "api_version": {"version": version},
        "billed_units": {"search_units": 1},
    }
    return {
        "id": request_id,
        "model": model,
        "results": results,
        "usage": usage_body(ranking.usage),
        "meta": _with_warnings(meta, ranking.warnings),
    }


def score_list(scores: Scores, *, request_id: str, model: str, created: int) -> dict[str, Any]:
    """Return the body of an answer to `ScoreRequest`."""
    return {
        "id": request_id,
        "object": "list",
        "created": created,
        "model": model,
        "data": [
            {"object": "score", "index": index, "score": score}
            for index, score in enumerate(scores.values)
        ],
        "usage": usage_body(scores.usage),
        "meta": _with_warnings({}, scores.warnings),
    }


def _with_warnings(meta: dict[str, Any], warnings: tuple[str, ...]) -> dict[str, Any]:
    return meta | ({"warnings": list(warnings)} if warnings else {})
