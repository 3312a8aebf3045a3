"""What was thought, packed for clients that send it back and store nothing here. They may read the
same in the item, so it is packed, and not encrypted."""

import base64
import zlib

from shared.errors import RequestError


def seal(reasoning: str) -> str:
    return base64.b64encode(zlib.compress(reasoning.encode(errors="surrogatepass"))).decode()


def unseal(packed: str, *, most_bytes: int) -> str | None:
    """What was thought; None where it is not ours.

    Raises:
        RequestError: `payload_too_large`: it is more than so many bytes.
    """
    decoder = zlib.decompressobj()
    try:
        found = decoder.decompress(base64.b64decode(packed, validate=True), most_bytes + 1)
        if len(found) <= most_bytes:
            return found.decode(errors="surrogatepass") if decoder.eof else None
    except (ValueError, zlib.error):
        return None
    raise RequestError(
        "input: reasoning.encrypted_content is too much in all", code="payload_too_large"
    )
