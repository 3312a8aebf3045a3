"""What is left of the device for KV caches."""

import mlx.core as mx
import pytest

from worker.engine import device

MB = 1_000_000


def test_what_caches_hold_already_counts_as_free_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = mx.get_active_memory() + 300 * MB
    monkeypatch.setattr(device, "memory_limit_bytes", lambda: limit)
    free = device.free_for_kv_bytes(0)
    cache = mx.zeros((25 * MB,), mx.float32)
    mx.eval(cache)
    assert free == pytest.approx(0.7 * 300 * MB, abs=MB)
    assert device.free_for_kv_bytes(0) == pytest.approx(0.7 * 200 * MB, abs=MB)
    assert device.free_for_kv_bytes(cache.nbytes) == pytest.approx(free, abs=MB)


def test_a_device_that_is_full_has_nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "memory_limit_bytes", lambda: mx.get_active_memory() - 100 * MB)
    assert device.free_for_kv_bytes(0) == 0


def test_a_device_with_memory_of_its_own_is_limited_by_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As MLX tells of one with CUDA, which recommends nothing."""
    gb = 1000 * MB
    told = {"total_memory": 80 * gb, "free_memory": 10 * gb}
    monkeypatch.setattr(mx, "device_info", lambda: told)
    assert device.memory_limit_bytes() == 80 * gb
    free = 0.7 * (10 * gb + mx.get_cache_memory())
    assert device.free_for_kv_bytes(0) == pytest.approx(free, abs=MB)


def test_what_a_device_recommends_counts_before_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"max_recommended_working_set_size": 48 * MB, "memory_size": 64 * MB}
    monkeypatch.setattr(mx, "device_info", lambda: told)
    assert device.memory_limit_bytes() == 48 * MB
