"""Reasoning as `encrypted_content`, for clients that send it back instead of storing responses. The
same text is readable in the item, so it is compressed, not encrypted."""

import base64
import zlib

from shared.errors import RequestError


def pack(reasoning: str) -> str:
    return base64.b64encode(zlib.compress(reasoning.encode(errors="surrogatepass"))).decode()


def unpack(packed: str, *, max_bytes: int) -> str | None:
    """Return the reasoning; None if `pack` did not make `packed`.

    Raises:
        RequestError: `payload_too_large`: the reasoning has more than `max_bytes`.
    """
    decoder = zlib.decompressobj()
    try:
        reasoning = decoder.decompress(base64.b64decode(packed, validate=True), max_bytes + 1)
        if len(reasoning) <= max_bytes:
            return reasoning.decode(errors="surrogatepass") if decoder.eof else None
    except (ValueError, zlib.error):
        return None
    raise RequestError(
        "input: reasoning.encrypted_content is too large in total", code="payload_too_large"
    )
