"""What performs each action of `controller.requests.transitions`."""

from collections.abc import Callable, Mapping

from controller.dispatch.dispatcher import Dispatcher
from controller.lifecycle.attempts import AttemptActions
from controller.lifecycle.client_queries import QueryActions
from controller.lifecycle.endings import EndingActions
from controller.requests.transitions import Action


def actions_of(
    attempts: AttemptActions,
    dispatcher: Dispatcher,
    endings: EndingActions,
    queries: QueryActions,
) -> Mapping[Action, Callable[..., None]]:
    """Return what performs each action of the table."""
    return {
        "begin": attempts.begin,
        "place": attempts.place,
        "place_with_history": attempts.place_with_history,
        "place_again": dispatcher.place_again,
        "place_elsewhere": attempts.place_elsewhere,
        "run": attempts.run,
        "record_tokens": attempts.record_tokens,
        "set_contents": attempts.set_contents,
        "requeue": attempts.requeue,
        "fail_over": attempts.fail_over,
        "lose": endings.lose,
        "end_finished": endings.end_finished,
        "end_failed": endings.end_failed,
        "end_list": endings.end_list,
        "end_cancelled": endings.end_cancelled,
        "fail": endings.fail,
        "fail_list": endings.fail_list,
        "abort": endings.abort,
        "cancel_offer": endings.cancel_offer,
        "cancel_at_worker": queries.cancel_at_worker,
        "cancel_list": queries.cancel_list,
        "add_inboxes": queries.add_inboxes,
        "attach": queries.attach,
        "attach_to_list": queries.attach_to_list,
        "resend_end": queries.resend_end,
        "run_again": queries.run_again,
    }
