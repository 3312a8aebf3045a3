"""Models that the hub or we refuse: each error names what is wrong and what to do."""

from pathlib import Path

import pytest

from tests.hub import TOKEN, HubStandIn
from tests.worker.models.fetching import NEEDED, REPO, WEIGHT_BYTES, WEIGHTS, Fetching
from tests.worker.models.model_folders import write_model
from worker.models.files import inspect

pytestmark = pytest.mark.anyio


async def test_an_unknown_model_is_named(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = f"the hub at {hub.url} has no model {REPO}, or it is private"
    assert f"{expected}: set HF_TOKEN or run `hf auth login`" in await Fetching().error()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert f"{expected}: the token of this machine" in await Fetching().error()


@pytest.mark.parametrize("revision", ["v2", "0" * 40])
async def test_an_unknown_revision_is_named(hub: HubStandIn, model: Path, revision: str) -> None:
    hub.add(REPO, model)
    error = await Fetching(revision=revision).error()
    assert f"{REPO} has no revision {revision}" in error


async def test_a_revision_that_would_be_a_path_is_refused(hub: HubStandIn) -> None:
    assert "is not a name of a revision" in await Fetching(revision="../../x").error()
    assert hub.requests == []


async def test_a_gated_model_needs_a_token_which_only_the_hub_sees(
    hub: HubStandIn, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, model, gated=True)
    error = await Fetching().error()
    assert f"{REPO} is gated: accept its licence on {hub.url}/{REPO}; set HF_TOKEN" in error
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    inspect(await Fetching().folder(), trust_remote_code=False)
    assert hub.sent_bytes(WEIGHTS) > WEIGHT_BYTES
    assert hub.tokens_elsewhere == []


async def test_the_token_of_hf_auth_login_is_used(
    hub: HubStandIn, model: Path, tmp_path: Path
) -> None:
    hub.add(REPO, model, private=True)
    assert f"has no model {REPO}, or it is private: set HF_TOKEN" in await Fetching().error()
    (tmp_path / "hf").mkdir(exist_ok=True)
    (tmp_path / "hf" / "token").write_text(TOKEN)
    inspect(await Fetching().folder(), trust_remote_code=False)


async def test_a_token_that_is_wrong_is_not_shown(
    hub: HubStandIn, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, model)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    error = await Fetching().error()
    assert "does not accept the token" in error and "hf_wrong" not in error


async def test_code_is_refused_before_weights_are_sent_and_fetched_when_trusted(
    hub: HubStandIn, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", model_file="modeling.py")
    hub.add(REPO, model)
    error = await Fetching().error()
    assert f"{REPO} contains Python code" in error and "trust_remote_code" in error
    assert {sent.name for sent in hub.sent} == NEEDED - {WEIGHTS}
    folder = await Fetching(trust_remote_code=True).folder()
    assert {path.name for path in folder.iterdir()} == NEEDED | {"modeling.py"}


async def test_pickles_are_refused_before_anything_is_sent(hub: HubStandIn, model: Path) -> None:
    (model / WEIGHTS).unlink()
    hub.add(REPO, model)
    assert f"{REPO} has no model*.safetensors; pytorch_model.bin is a pickle" in (
        await Fetching().error()
    )
    assert hub.sent == []


async def test_a_hub_that_fails_or_is_none_is_told(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    hub.faults.status = 500
    assert f"the hub at {hub.url} answers with status 500; try again" in await Fetching().error()
    hub.faults.status, hub.faults.page = None, "<html>Please log in to this Wi-Fi</html>"
    assert f"{hub.url} does not answer like a Hugging Face hub" in await Fetching().error()
