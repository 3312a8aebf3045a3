"""Settings that are read no more are told to who still has them."""

from shared.settings import ClusterSettings
from shared.settings.rolled_out import ignored_settings


def test_nothing_is_told_where_nothing_was_said() -> None:
    assert list(ignored_settings(ClusterSettings())) == []


def test_what_somebody_set_is_told_by_its_key() -> None:
    said = {"enabled": True, "ema_alpha": 0.5, "max_adjustment_step": 2, "tolerance_ms": 5}
    settings = ClusterSettings.model_validate({"worker": {"adaptive_batching": said}})
    assert list(ignored_settings(settings)) == ["worker.adaptive_batching.ema_alpha"]
