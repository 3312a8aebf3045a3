"""The NATS accounts: one for the processes of the cluster, and one for each client.

NATS limits the connections of an account, not of a user, so each client has an account of its own.
Subjects cross accounts as stream exports, which leave subject and reply subject as they are; with
service exports the server replaces the reply subject, and a worker never learns that an inbox is
gone.

The accounts exist before their clients do. A server of a NATS cluster never learns which subjects
of an account others listen to if it gets the account by a reload (NATS 2.15, nats-server#8560).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.access.member_credentials import new_seed, public_key
from shared.access.roles import Role, permissions
from shared.subjects import INBOX_PREFIX

CLUSTER_ACCOUNT = "cluster"
"""The account of all roles but `client`. Only this account has JetStream."""
CLIENT_CONNECTIONS = 32
"""The default of a client's connections, over all servers: a process has one."""
_CLIENT_SUBSCRIPTIONS = 4096
"""Of one connection. The client library has one for each stream with an inbox of its own."""
_MIN_CLIENT_ACCOUNTS = 64


@dataclass(frozen=True, slots=True)
class User:
    """A NATS user.

    Attributes:
        public_key: an nkey, `U...`; its seed authenticates the user.
        account: the number of a client's account.
        max_connections: of a client, with all its keys.
    """

    role: Role
    name: str
    public_key: str
    account: int = 0
    max_connections: int = CLIENT_CONNECTIONS


def accounts(users: Iterable[User]) -> dict[str, Any]:
    """Return the `accounts` of a server's configuration."""
    known = list(users)
    clients: dict[int, list[User]] = {}
    for user in known:
        if user.role == "client":
            clients.setdefault(user.account, []).append(user)
    names = [_client_account(number) for number in range(client_accounts(clients))]
    others = [user for user in known if user.role != "client"]
    return {
        CLUSTER_ACCOUNT: _cluster_account(others, names),
        **{name: _account_of(clients.get(number, ())) for number, name in enumerate(names)},
    }


def client_accounts(numbers: Iterable[int]) -> int:
    """Return how many accounts for clients there are if these numbers are in use."""
    needed = max(numbers, default=0) + 1
    return max(_MIN_CLIENT_ACCOUNTS, 1 << (needed - 1).bit_length())


def _cluster_account(users: Sequence[User], clients: Sequence[str]) -> Mapping[str, Any]:
    return {
        "jetstream": "enabled",
        "users": [_entry(user) for user in users] or [_placeholder()],
        "exports": [{"stream": inbox, "accounts": list(clients)} for inbox in _INBOXES],
        "imports": [
            {"stream": {"account": client, "subject": subject}}
            for client in clients
            for subject in _REQUESTS
        ],
    }


def _account_of(users: Sequence[User]) -> Mapping[str, Any]:
    """Return the account of the client with these keys, or one that waits for a client."""
    return {
        "users": [_entry(user) for user in users],
        "limits": {
            "max_connections": max(
                (user.max_connections for user in users), default=CLIENT_CONNECTIONS
            ),
            "max_subscriptions": _CLIENT_SUBSCRIPTIONS,
        },
        "exports": [{"stream": subject, "accounts": [CLUSTER_ACCOUNT]} for subject in _REQUESTS],
        "imports": [
            {"stream": {"account": CLUSTER_ACCOUNT, "subject": inbox}} for inbox in _INBOXES
        ],
    }


def _client_account(number: int) -> str:
    return f"client-{number}"


def _entry(user: User) -> dict[str, Any]:
    allowed = permissions(user.role, user.name)
    return {
        "nkey": user.public_key,
        "permissions": {
            "publish": {"allow": list(allowed.publish)},
            "subscribe": {"allow": list(allowed.subscribe)},
        },
    }


def _placeholder() -> dict[str, Any]:
    """Return a user whose seed is discarded: a server without users lets everybody in."""
    return {"nkey": public_key(new_seed()), "permissions": {"publish": {"deny": [">"]}}}


_OF_ANY_CLIENT = permissions("client", "*")
_INBOXES = _OF_ANY_CLIENT.subscribe
"""From the cluster's account to that of a client; the client's permissions name its own."""
_REQUESTS = tuple(
    subject for subject in _OF_ANY_CLIENT.publish if not subject.startswith(INBOX_PREFIX)
)
"""From a client's account to the cluster's."""
