"""A worker that tells owners only of the first token of each answer: its streams end with it.

For `benchmarks.protection` alone; what it leaves out is what another worker needs to go on.
"""

from shared.messages.request_events import TokensEmitted
from worker.link.facts import SequenceOutput
from worker.main import main
from worker.requests.active_choice import ActiveChoice
from worker.requests.active_request import ActiveRequest
from worker.requests.leader_events import tokens_emitted
from worker.scheduling import step_result_handler


def _first_tokens_emitted(
    request: ActiveRequest, choice: ActiveChoice, output: SequenceOutput
) -> TokensEmitted | None:
    return tokens_emitted(request, choice, output) if output.index == 0 else None


if __name__ == "__main__":
    step_result_handler.tokens_emitted = _first_tokens_emitted  # type: ignore[attr-defined]
    main()
