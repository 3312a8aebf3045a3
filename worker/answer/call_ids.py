"""The ids of tool calls as a family's chat templates demand them."""

import hashlib
import re
from collections.abc import Callable, Mapping

_SHORT = re.compile(r"[A-Za-z0-9]{9}")


def short_id(call_id: str) -> str:
    """Nine letters and digits: always the same for a call, and as it is where it has that form."""
    if _SHORT.fullmatch(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(errors="surrogatepass"), digest_size=5).hexdigest()[:9]


CALL_IDS: Mapping[str, Callable[[str], str]] = {"mistral": short_id, "mistral_args": short_id}
"""By tool format; the others take any id."""
