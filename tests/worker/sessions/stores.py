"""Session stores for tests."""

from collections.abc import Callable
from pathlib import Path

from shared.settings.kv_cache import SessionRetentionSettings
from worker.link.orders import Order
from worker.sessions.files import SessionFiles
from worker.sessions.store import SessionStore


def new_store(
    folder: Path | None = None,
    *,
    orders: list[tuple[int, Order]] | None = None,
    pin_limit_bytes: int = 1000,
    clock: Callable[[], float] = lambda: 0.0,
    **settings: int,
) -> SessionStore:
    """A store; `orders` takes its orders to engines."""
    told = orders if orders is not None else []
    return SessionStore(
        SessionRetentionSettings.model_validate(settings),
        SessionFiles(folder),
        lambda engine, order: told.append((engine, order)),
        pin_limit_bytes=lambda: pin_limit_bytes,
        clock=clock,
    )
