"""Session books for tests."""

from collections.abc import Callable
from pathlib import Path

from shared.settings.kv_cache import SessionsSettings
from worker.link.orders import Order
from worker.sessions.book import SessionStore
from worker.sessions.files import SessionFiles


def new_book(
    folder: Path | None = None,
    *,
    orders: list[tuple[int, Order]] | None = None,
    pin_limit_bytes: int = 1000,
    clock: Callable[[], float] = lambda: 0.0,
    **settings: int,
) -> SessionStore:
    """A book; `orders` takes what it tells engines."""
    told = orders if orders is not None else []
    return SessionStore(
        SessionsSettings.model_validate(settings),
        SessionFiles(folder),
        lambda engine, order: told.append((engine, order)),
        pin_limit_bytes=lambda: pin_limit_bytes,
        clock=clock,
    )
