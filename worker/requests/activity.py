"""What this worker does with its requests, for those who watch the cluster."""

from shared.ids import ClientName
from shared.messages.request_list import RequestActivity
from worker.requests.table import RequestTable


def request_activity(requests: RequestTable, client: ClientName | None) -> list[RequestActivity]:
    """Return the present requests of a client, or of all, in the order of their arrival."""
    return [
        RequestActivity(
            client=request.dispatch.client,
            request_id=request.dispatch.request_id,
            attempt=request.dispatch.attempt,
            model=request.model,
            status=request.status,
            progress=request.progress,
            tokens=request.tokens,
            prompt_tokens=request.prompt_tokens,
        )
        for request in requests
        if client in (None, request.dispatch.client)
    ]
