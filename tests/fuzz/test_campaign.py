"""A short campaign against a secured and an open cluster: everybody else is served."""

from pathlib import Path

import pytest

from tests.access.roles import refused
from tests.fuzz.campaign import FuzzCampaign
from tests.fuzz.target import target

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

_BURSTS = 12
_SPARE_S = 30.0
"""These machines are shared: how long an answer takes says nothing here."""


@pytest.mark.parametrize("secured", [True, False], ids=["secured", "open"])
async def test_hostile_bytes_stop_nobody(
    tiny_model: Path, tmp_path: Path, seed: int, secured: bool
) -> None:
    lines: list[str] = []
    with target(tmp_path, tiny_model, secured=secured) as attacked:
        campaign = FuzzCampaign(attacked, seed, lines.append, spare_s=_SPARE_S)
        report = await campaign.run(120, bursts=_BURSTS)
    assert [line for line in refused() if "client-local" not in line] == []
    assert report.violations == []
    assert report.bursts == _BURSTS and report.sent > 500
