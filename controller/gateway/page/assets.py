"""Serves the files of the page. They are public: they show nothing without the API."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from shared.errors import RequestError

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
    "vary": "accept",
}


@dataclass(frozen=True, slots=True)
class _Asset:
    body: bytes
    media_type: str
    etag: str


class PageAssets:
    """Reads all files once."""

    def __init__(self) -> None:
        self._assets: Mapping[str, _Asset] = dict(_read(files(__package__) / "static", ""))

    def response(self, request: Request, name: str) -> Response:
        """Return the response with a file.

        Raises:
            RequestError: `not_found`: there is no such file.
        """
        asset = self._assets.get(name)
        if asset is None:
            raise RequestError(f"the page has no file {name[:100]!r}", code="not_found")
        headers = {**_HEADERS, "etag": asset.etag}
        if asset.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(asset.body, media_type=asset.media_type, headers=headers)


def wants_page(accept: str) -> bool:
    """Whether a browser asks for a page, and not a program for JSON."""
    return "text/html" in accept


def _read(folder: Traversable, prefix: str) -> list[tuple[str, _Asset]]:
    found: list[tuple[str, _Asset]] = []
    if not folder.is_dir():
        return found
    for entry in folder.iterdir():
        name, ending = f"{prefix}{entry.name}", entry.name.rpartition(".")[2]
        if entry.is_dir():
            found += _read(entry, f"{name}/")
        elif ending in _TYPES:
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            found.append((name, _Asset(body, _TYPES[ending], etag)))
    return found
