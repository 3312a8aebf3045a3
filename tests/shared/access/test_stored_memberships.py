"""What a machine joined: kept, private, one for each command that takes part."""

import stat
from pathlib import Path

import pytest

from shared.access.member_credentials import MemberCredentials, new_seed
from shared.access.roles import ROLES, Role
from shared.access.stored_memberships import (
    join,
    joined_settings,
    leave,
    member_program,
    membership,
)
from shared.errors import SettingsError
from shared.settings import load_settings

pytestmark = pytest.mark.usefixtures("home")


def member(role: Role, name: str = "mac-1", authority: str | None = "PEM") -> MemberCredentials:
    return MemberCredentials(
        role=role, name=name, servers=["tls://a:4222"], seed=new_seed(), authority=authority
    )


@pytest.mark.parametrize("role", ROLES)
def test_settings_follow_from_a_membership(role: Role) -> None:
    given = member(role)
    join(given)
    settings = load_settings(None, None, joined_settings(member_program(role)))
    assert settings.nats.servers == ["tls://a:4222"]
    assert settings.nats.nkey_seed_file is not None and settings.nats.tls is not None
    assert Path(settings.nats.nkey_seed_file).read_text() == given.seed
    assert Path(settings.nats.tls.ca_file or "").read_text() == "PEM"
    assert settings.security.strict_inbox
    names = {
        "client": settings.security.client,
        "admin": settings.security.client,
        "worker": settings.worker.id,
        "controller": settings.controller.id,
        "gateway": settings.gateway.id,
    }
    assert names[role] == "mac-1"


def test_nothing_is_joined_at_first() -> None:
    assert membership("worker") is None and joined_settings("worker") is None
    assert not leave("worker")


def test_each_command_has_its_own_and_the_last_one_holds() -> None:
    join(member("worker"))
    join(member("client", "ada"))
    join(member("admin", "root", authority=None))
    kept = membership("cluster")
    assert kept is not None and (kept.role, kept.name) == ("admin", "root")
    settings = joined_settings("cluster")
    assert settings is not None and "tls" not in settings["nats"]
    assert leave("cluster")
    assert membership("cluster") is None and membership("worker") is not None


def test_nobody_else_can_read_what_is_kept(home: Path) -> None:
    join(member("worker"))
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert len(kept) == 3
    for path in kept:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", ["", "{", "{}", '{"role": "worker", "seed": "SUSECRET"}'])
def test_what_is_broken_is_said_without_its_secrets(home: Path, content: str) -> None:
    join(member("worker"))
    (path,) = home.rglob("membership.json")
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"join again") as caught:
        joined_settings("worker")
    assert "SUSECRET" not in caught.value.message
