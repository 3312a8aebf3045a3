"""Nkeys: who has the seed can prove to be the user of the public key."""

import os

import nkeys

from shared.errors import SettingsError


def new_seed() -> str:
    """The seed of a new user: `SU...`. It is a secret."""
    return bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)).decode()


def public_key(seed: str) -> str:
    """What the server knows a user by: `U...`.

    Raises:
        SettingsError: it is no seed; what it is is not shown.
    """
    seed = seed.strip()
    try:
        prefix, raw = nkeys.decode_seed(seed.encode())
        if prefix != nkeys.PREFIX_BYTE_USER or nkeys.encode_seed(raw, prefix).decode() != seed:
            raise ValueError("of somebody else, or with a wrong letter")
        return bytes(nkeys.from_seed(bytearray(seed.encode())).public_key).decode()
    except (nkeys.NkeysError, ValueError, IndexError):
        raise SettingsError("this is no nkey seed of a user: one begins with SU") from None
