"""A worker that tells owners only of the first token of each answer: its streams end with it.

For `benchmarks.protection` alone; what it leaves out is what another worker needs to go on.
"""

from shared.messages.events import TokensEmitted
from worker.link.facts import Output
from worker.main import main
from worker.requests.active_request import ActiveRequest, RequestChoice

_tell = ActiveRequest.emitted


def _tell_of_the_first(
    self: ActiveRequest, choice: RequestChoice, output: Output
) -> TokensEmitted | None:
    return _tell(self, choice, output) if output.index == 0 else None


if __name__ == "__main__":
    ActiveRequest.emitted = _tell_of_the_first  # type: ignore[method-assign]
    main()
