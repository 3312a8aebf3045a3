"""Nkeys: the owner of the seed proves to be the user of the public key."""

import os

import nkeys

from shared.errors import SettingsError


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
