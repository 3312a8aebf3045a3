"""The membership of a user: the servers, their certificate authority, and the user's secret.

It is transferred as a token: one line to paste on another machine. The token is a secret.
"""

import base64
import binascii
import os
import zlib
from typing import Annotated, Literal

import nkeys
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from shared.access.roles import Role
from shared.errors import SettingsError
from shared.ids import NAME_PATTERN
from shared.settings.nats import ServerUrl


def new_seed() -> str:
    """Return the seed of a new user, `SU...`. It is a secret."""
    return bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)).decode()


def public_key(seed: str) -> str:
    """Return the public key of a user, `U...`.

    Raises:
        SettingsError: `seed` is invalid; the message does not show it.
    """
    seed = seed.strip()
    try:
        prefix, raw = nkeys.decode_seed(seed.encode())
        if prefix != nkeys.PREFIX_BYTE_USER or nkeys.encode_seed(raw, prefix).decode() != seed:
            raise ValueError("another kind of key, or a wrong character")
        return bytes(nkeys.from_seed(bytearray(seed.encode())).public_key).decode()
    except (nkeys.NkeysError, ValueError, IndexError):
        raise SettingsError("this is no nkey seed of a user: one begins with SU") from None


_PREFIX = "mlx1."
"""Of tokens; the number is the version of the format."""
_MAX_BYTES = 64 * 1024


def _seed(text: str) -> str:
    try:
        public_key(text)
    except SettingsError as error:
        raise ValueError(error.message) from None
    return text


class MemberCredentials(BaseModel):
    """
    Attributes:
        seed: of the user's nkey.
        authority: the certificate that signs those of the servers, as PEM; None without TLS.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    version: Literal[1] = 1
    role: Role
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    servers: Annotated[list[ServerUrl], Field(min_length=1, max_length=64)]
    seed: Annotated[str, AfterValidator(_seed)] = Field(repr=False)
    authority: str | None = None

    def token(self) -> str:
        packed = zlib.compress(self.model_dump_json(exclude_none=True).encode(), 9)
        return _PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read_token(text: str) -> MemberCredentials:
    """Return the membership in a token.

    Raises:
        SettingsError: the token is invalid or incomplete; the message does not show it.
    """
    text = "".join(text.split())  # a terminal or mail program may have wrapped it
    if not text.startswith(_PREFIX):
        raise SettingsError(f"this is no token: one begins with {_PREFIX}")
    body = text.removeprefix(_PREFIX)
    try:
        packed = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        decompressor = zlib.decompressobj()
        content = decompressor.decompress(packed, _MAX_BYTES)
        if not decompressor.eof:
            raise ValueError
        return MemberCredentials.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "token"
        raise SettingsError(f"the token is not valid here: {where}: {first['msg']}") from None
    except (ValueError, binascii.Error, zlib.error):
        raise SettingsError("the token is not whole: was all of it copied?") from None
