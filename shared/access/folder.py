"""The access folder: the members of a cluster, and all secrets. It stays on one machine.

authority.crt, authority.key   the certificate authority
users.json                     the users with their public keys
seeds/<role>-<name>.nk         the secret of each user
server.crt, server.key         the certificate of the NATS server
nats-server.json               the configuration of the server, generated from the above
servers/<host>/                the last two lines for each server of a NATS cluster
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import orjson
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shared.access.certificates import CertificateAndKey, new_authority
from shared.access.member_credentials import MemberCredentials, new_seed, public_key
from shared.access.nats_accounts import CLIENT_CONNECTIONS, User, client_accounts
from shared.access.private_file import write_private
from shared.access.roles import Role
from shared.access.server_config import in_url
from shared.access.server_folder import NatsServerFolder, server_folders, write_identity
from shared.errors import SettingsError
from shared.ids import NAME_PATTERN, is_name

_USERS = "users.json"
_MIN_CLUSTER_SERVERS = 3
_LOCK_TIMEOUT_S = 10.0


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClusterMember(_Model):
    """
    Attributes:
        public_keys: the current one first; during a rotation the older one is accepted, too.
        added_at: RFC 3339.
        account: the number of a client's NATS account; None for other roles.
        max_connections: of a client; None: the default.
    """

    role: Role
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    public_keys: Annotated[list[str], Field(min_length=1, max_length=2)]
    added_at: str
    account: Annotated[int, Field(ge=0)] | None = None
    max_connections: Annotated[int, Field(ge=1)] | None = None


class ServerAddresses(_Model):
    """The address on which servers listen, and the names and addresses that reach them.

    Attributes:
        route_port: for the routes between the servers of a NATS cluster, of which each has one of
            `names`. None: all `names` are of a single server.
    """

    host: str = "0.0.0.0"
    port: Annotated[int, Field(ge=1, le=65535)] = 4222
    names: Annotated[list[str], Field(min_length=1)]
    route_port: Annotated[int, Field(ge=1, le=65535)] | None = None

    @model_validator(mode="after")
    def _survives_a_loss(self) -> Self:
        if self.route_port is not None and len(set(self.names)) < _MIN_CLUSTER_SERVERS:
            raise ValueError(
                f"a NATS cluster needs {_MIN_CLUSTER_SERVERS} servers at least: JetStream needs a "
                "majority, so with two servers neither may be lost"
            )
        return self


class _Content(_Model):
    version: Literal[1] = 1
    listening: ServerAddresses
    users: list[ClusterMember] = []


class AccessFolder:
    """Changes run one after another inside `changing`, and are written to disk at once."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            SettingsError: `path` is not an access folder, or cannot be read.
        """
        self.path = path
        try:
            content = _Content.model_validate_json((path / _USERS).read_bytes())
        except FileNotFoundError:
            raise SettingsError(f"{path}: `cluster auth init` creates this folder first") from None
        except (OSError, ValidationError) as error:
            raise SettingsError(f"{path / _USERS}: {error}") from None
        self._content = content.model_copy(update={"users": _with_accounts(content.users)})

    @classmethod
    def create(cls, path: Path, listening: ServerAddresses) -> Self:
        """Create the folder.

        Raises:
            SettingsError: it exists already, or cannot be created.
        """
        if (path / _USERS).exists():
            raise SettingsError(f"{path} exists already; add users with `cluster auth add`")
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            (path / "seeds").mkdir(mode=0o700, exist_ok=True)
            authority = new_authority("mlx-nats-cluster")
            write_identity(path, "authority", authority)
            _write_certificates(path, listening, authority)
            write_private(path / _USERS, _encoded(_Content(listening=listening)))
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from None
        folder = cls(path)
        folder._write_config()
        return folder

    @property
    def users(self) -> Sequence[ClusterMember]:
        return self._content.users

    @property
    def client_accounts(self) -> int:
        """How many NATS accounts for clients the servers have."""
        return client_accounts(user.account for user in self.users if user.account is not None)

    @property
    def servers(self) -> Sequence[NatsServerFolder]:
        return _servers(self.path, self._content.listening)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock for a change, and then write the configuration of the servers.

        Raises:
            SettingsError: the folder cannot be written.
        """
        try:
            with FileLock(self.path / ".lock", timeout=_LOCK_TIMEOUT_S):
                self._content = type(self)(self.path)._content
                yield
                self._write_config()
        except Timeout:
            raise SettingsError(f"{self.path}: another process is changing it") from None
        except OSError as error:
            raise SettingsError(f"{self.path}: {error.strerror}") from None

    def add(
        self, role: Role, name: str, *, now: str, max_connections: int | None = None
    ) -> MemberCredentials:
        """Add a user.

        Args:
            max_connections: of a client; None: the default.

        Raises:
            SettingsError: the role has a user of that name already, or no limit of connections, or
                the name is invalid.
        """
        _check_limit(role, max_connections)
        if not is_name(name):
            raise SettingsError(f"{name!r}: a name is 1 to 64 of A-Z, a-z, 0-9, _ and -")
        if self._find(role, name) is not None:
            raise SettingsError(
                f"there is a {role} {name!r} already; `cluster auth token` shows it"
            )
        seed = new_seed()
        user = ClusterMember(
            role=role,
            name=name,
            public_keys=[public_key(seed)],
            added_at=now,
            max_connections=max_connections,
        )
        self._write_seed(role, name, seed)
        self._write_users([*self.users, user])
        return self.membership(role, name)

    def rotate(self, role: Role, name: str) -> MemberCredentials:
        """Give a user a new key; the old one is accepted until `retire` or the next `rotate`."""
        user = self._require(role, name)
        seed = new_seed()
        self._write_seed(role, name, seed)
        keys = [public_key(seed), user.public_keys[0]]
        self._replace(user, user.model_copy(update={"public_keys": keys}))
        return self.membership(role, name)

    def retire(self, role: Role, name: str) -> bool:
        """Accept only the current key from now on; return False if there was no other."""
        user = self._require(role, name)
        self._replace(user, user.model_copy(update={"public_keys": user.public_keys[:1]}))
        return len(user.public_keys) > 1

    def limit(self, role: Role, name: str, max_connections: int) -> None:
        """Change how many connections a client may have.

        Raises:
            SettingsError: there is no such user, or the role has no such limit.
        """
        _check_limit(role, max_connections)
        user = self._require(role, name)
        self._replace(user, user.model_copy(update={"max_connections": max_connections}))

    def remove(self, role: Role, name: str) -> None:
        """Remove a user."""
        user = self._require(role, name)
        self._write_users([each for each in self.users if each is not user])
        self._seed_file(role, name).unlink(missing_ok=True)

    def renew_server(self, names: Sequence[str] | None = None) -> None:
        """Create new certificates for the servers, with new `names` if given.

        Raises:
            SettingsError: the names are invalid.
        """
        listening = self._content.listening
        if names:
            listening = new_listening(**{**listening.model_dump(), "names": list(names)})
        current = {server.path for server in _servers(self.path, listening)}
        removed = [server for server in self.servers if server.path not in current]
        _write_certificates(self.path, listening, _identity(self.path, "authority"))
        for server in removed:
            server.remove()
        self._write_content(self._content.model_copy(update={"listening": listening}))

    def membership(self, role: Role, name: str) -> MemberCredentials:
        """Return the membership of a user.

        Raises:
            SettingsError: there is no such user, or its files cannot be read.
        """
        self._require(role, name)
        listening = self._content.listening
        try:
            seed = self._seed_file(role, name).read_text()
            authority = (self.path / "authority.crt").read_text()
        except OSError as error:
            raise SettingsError(f"{error.filename}: {error.strerror}") from None
        servers = [f"tls://{in_url(host)}:{listening.port}" for host in listening.names]
        return MemberCredentials(
            role=role, name=name, servers=servers, seed=seed, authority=authority
        )

    def _require(self, role: Role, name: str) -> ClusterMember:
        user = self._find(role, name)
        if user is None:
            raise SettingsError(f"there is no {role} {name!r}; `cluster auth ls` lists all users")
        return user

    def _find(self, role: Role, name: str) -> ClusterMember | None:
        return next((user for user in self.users if (user.role, user.name) == (role, name)), None)

    def _replace(self, user: ClusterMember, by: ClusterMember) -> None:
        self._write_users([by if each is user else each for each in self.users])

    def _write_users(self, users: Sequence[ClusterMember]) -> None:
        self._write_content(self._content.model_copy(update={"users": _with_accounts(users)}))

    def _write_content(self, content: _Content) -> None:
        write_private(self.path / _USERS, _encoded(content))
        self._content = content

    def _seed_file(self, role: Role, name: str) -> Path:
        return self.path / "seeds" / f"{role}-{name}.nk"

    def _write_seed(self, role: Role, name: str, seed: str) -> None:
        write_private(self._seed_file(role, name), seed.encode())

    def _write_config(self) -> None:
        users = [
            User(
                user.role,
                user.name,
                key,
                account=user.account or 0,
                max_connections=user.max_connections or CLIENT_CONNECTIONS,
            )
            for user in self.users
            for key in user.public_keys
        ]
        listening = self._content.listening
        for server in self.servers:
            server.write_config(users, host=listening.host, port=listening.port)


def _with_accounts(users: Sequence[ClusterMember]) -> list[ClusterMember]:
    """Give each client without an account the lowest number that is free."""
    used = {user.account for user in users}
    free = (number for number in itertools.count() if number not in used)
    return [
        user.model_copy(update={"account": next(free)})
        if user.role == "client" and user.account is None
        else user
        for user in users
    ]


def _check_limit(role: Role, max_connections: int | None) -> None:
    if max_connections is not None and role != "client":
        raise SettingsError(f"only a client has a limit of connections, a {role} has none")


def new_listening(**values: Any) -> ServerAddresses:
    """Return the addresses of these values.

    Raises:
        SettingsError: the values are invalid.
    """
    try:
        return ServerAddresses(**values)
    except ValidationError as error:
        raise SettingsError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _encoded(content: _Content) -> bytes:
    return orjson.dumps(content.model_dump(), option=orjson.OPT_INDENT_2)


def _identity(folder: Path, name: str) -> CertificateAndKey:
    certificate = (folder / f"{name}.crt").read_bytes()
    return CertificateAndKey(certificate, (folder / f"{name}.key").read_bytes())


def _servers(folder: Path, listening: ServerAddresses) -> Sequence[NatsServerFolder]:
    return server_folders(folder, listening.names, listening.route_port)


def _write_certificates(
    folder: Path, listening: ServerAddresses, authority: CertificateAndKey
) -> None:
    for server in _servers(folder, listening):
        server.write_certificate(authority)
