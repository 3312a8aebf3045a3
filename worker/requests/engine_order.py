"""The order with which an engine generates one choice of a request."""

from shared.messages.base import PRIORITIES
from shared.messages.dispatch import choice_seed
from shared.messages.request import InferenceRequest
from worker.link.orders import (
    EmbeddingOptions,
    Sampling,
    SentCharacters,
    SubmitSequence,
    ToolCallingOptions,
)
from worker.requests.active_choice import ActiveChoice
from worker.requests.active_request import ActiveRequest


def submit_order(request: ActiveRequest, choice: ActiveChoice) -> SubmitSequence:
    """Return the order to generate one choice."""
    body = request.dispatch.request
    prompt = body.prompts[choice.number // body.n] if body.prompts else None
    # The leader does not know the logprobs of earlier tokens: those are generated again.
    replays = body.logprobs is None
    return SubmitSequence(
        sequence=choice.sequence,
        model=request.model,
        messages=request.messages or None,
        text=prompt if isinstance(prompt, str) else None,
        token_ids=prompt if isinstance(prompt, list) else None,
        max_tokens=body.max_tokens,
        stop=body.stop_strings,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            min_p=body.min_p,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=body.logit_bias,
            seed=choice_seed(request.dispatch.seed, choice.number),
            logprobs=body.logprobs,
        ),
        priority=PRIORITIES.index(request.level),
        resumed_ids=body.received_ids,
        sent=SentCharacters(**body.resume.characters.model_dump())
        if body.resume
        else SentCharacters(),
        template_values=body.chat_template_kwargs,
        reasoning_effort=body.reasoning_effort,
        thinking_budget=body.thinking_budget,
        continues=body.continue_final_message,
        debug=body.debug,
        calling=_calling(body),
        structure=body.structure,
        replayed_ids=list(choice.known_ids[len(body.received_ids) :]) if replays else [],
        ended=choice.known_end if replays and not body.embeds else None,
        count_only=body.count_only,
        session=body.cache_session,
        embedding=_embedding(body, choice.number),
        client=request.client,
        is_newcomer=request.is_newcomer and choice.number == 0,
    )


def _embedding(body: InferenceRequest, number: int) -> EmbeddingOptions | None:
    if not body.embeds:
        return None
    query = body.queries[number] if body.queries else None
    return EmbeddingOptions(body.dimensions, body.prompt_name, query, body.truncate)


def _calling(body: InferenceRequest) -> ToolCallingOptions | None:
    tools = [tool.model_dump(exclude_none=True) for tool in body.usable_tools]
    forced = body.forced_tool
    if not tools:
        return None
    return ToolCallingOptions(tools, forced, body.must_call, body.parallel_tool_calls)
