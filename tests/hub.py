"""A stand-in for the Hugging Face hub: real HTTP on 127.0.0.1, and faults on demand.

It speaks what huggingface_hub 2.x asks for when it fetches a model: the model's info with the
metadata of its files, the tree of a commit, HEAD and GET of a file. Like the hub, it sends large
files from another host, by redirect.
"""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from tests.hub_files import Repository, StoredFile

TOKEN = "hf_this-is-the-secret-token"
_PIECE_BYTES = 16 * 1024
_INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_LARGE_CONTENT = re.compile(r"/large/([0-9a-f]+)/(.+)")


@dataclass(slots=True)
class Sent:
    """The bytes of a file that one answer held, as far as they were sent."""

    name: str
    first_byte: int
    count: int = 0


@dataclass(slots=True)
class Faults:
    """By names of files, and places in bytes.

    Attributes:
        cut: the connection breaks there, once.
        stall: nothing more is sent there, and the connection stays.
        instead: what is sent in place of the content.
        status: every answer has it.
        page: every answer is this text.
    """

    cut: dict[str, int] = field(default_factory=dict)
    stall: dict[str, int] = field(default_factory=dict)
    instead: dict[str, bytes] = field(default_factory=dict)
    status: int | None = None
    page: str | None = None


class HubStandIn:
    """Use it as a context manager. The counters and faults may be used from any thread.

    Attributes:
        sent: the answers that held the content of a file, in order.
        requests: method and path of each.
        tokens_elsewhere: Authorization headers that reached the other host.
        stalled: set when an answer has stalled.
    """

    def __init__(self) -> None:
        self.faults = Faults()
        self.sent: list[Sent] = []
        self.requests: list[str] = []
        self.tokens_elsewhere: list[str] = []
        self.stalled = threading.Event()
        self.closing = threading.Event()
        self.repositories: dict[str, Repository] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """From now on connections are refused. May be called again."""
        if not self.closing.is_set():
            self.closing.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def add(
        self,
        repo: str,
        folder: Path,
        *,
        branch: str = "main",
        gated: bool = False,
        private: bool = False,
        claimed_bytes: Mapping[str, int] | None = None,
    ) -> str:
        """Take the files of a folder as a new commit, which is returned.

        Args:
            claimed_bytes: sizes that the hub names in place of the true ones, by file.
        """
        files = {}
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = path.relative_to(folder).as_posix()
            files[name] = StoredFile.of(name, path.read_bytes())
        for name, size_bytes in (claimed_bytes or {}).items():
            files[name] = replace(files[name], size_bytes=size_bytes)
        ids = [f"{name} {file.etag}" for name, file in files.items()]
        commit = hashlib.sha1("\n".join(ids).encode()).hexdigest()
        repository = self.repositories.setdefault(repo, Repository(gated, private))
        repository.commits[commit] = files
        repository.branches[branch] = commit
        return commit

    def sent_bytes(self, name: str) -> int:
        """How much of a file's content was sent in all."""
        return sum(sent.count for sent in self.sent if sent.name == name)


class _Refused(Exception):
    """Ends the handling of a request with that answer."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        self.status, self.message, self.code = status, message, code


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: HubStandIn

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients of these tests are killed; that is not worth a traceback."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.hub.requests.append(f"{self.command} {self.path}")
        try:
            self._route(urlsplit(self.path).path)
        except _Refused as refusal:
            body = json.dumps({"error": refusal.message}).encode()
            headers = {"Content-Type": "application/json", "X-Error-Message": refusal.message}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            self._answer(body, headers, status=refusal.status)

    def _route(self, path: str) -> None:
        faults = self.server.hub.faults
        if faults.status is not None:
            raise _Refused(faults.status, "as you wished")
        if faults.page is not None:
            self._answer(faults.page.encode())
        elif match := _LARGE_CONTENT.fullmatch(path):
            self._send_large(match[1], unquote(match[2]))
        elif match := _INFO.fullmatch(path):
            self._send_info(match[1], unquote(match[2] or "main"))
        elif match := _TREE.fullmatch(path):
            self._send_tree(match[1], unquote(match[2]))
        elif match := _RESOLVE.fullmatch(path):
            self._resolve(match[1], unquote(match[2]), unquote(match[3]))
        else:
            raise _Refused(404, "no such page")

    def _find(
        self, repo: str, revision: str, *, content: bool = False
    ) -> tuple[str, dict[str, StoredFile]]:
        """A commit and its files."""
        token = self.headers.get("Authorization")
        if token is not None and token != f"Bearer {TOKEN}":
            raise _Refused(401, "Invalid credentials in Authorization header")
        found = self.server.hub.repositories.get(repo)
        if found is None or (found.private and token is None):
            if token is None:  # so the hub tells nobody which private ones there are
                raise _Refused(401, "Invalid username or password.")
            raise _Refused(404, "Repository not found", "RepoNotFound")
        if found.gated and content and token is None:
            raise _Refused(401, f"Access to model {repo} is restricted", "GatedRepo")
        commit = found.commit(revision)
        if commit is None:
            raise _Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit, found.commits[commit]

    def _send_info(self, repo: str, revision: str) -> None:
        commit, files = self._find(repo, revision)
        siblings = [
            {
                "rfilename": name,
                "size": file.size_bytes,
                "blobId": file.git_id,
                **file.lfs("sha256"),
            }
            for name, file in files.items()
        ]
        info = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings}
        self._answer(json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _send_tree(self, repo: str, revision: str) -> None:
        _, files = self._find(repo, revision)
        tree = [
            {"type": "file", "path": name, "size": file.size_bytes, "oid": file.git_id}
            | file.lfs("oid")
            for name, file in files.items()
        ]
        self._answer(json.dumps(tree).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        commit, files = self._find(repo, revision, content=True)
        file = files.get(name)
        if file is None:
            raise _Refused(404, "Entry not found", "EntryNotFound")
        if not file.sha256:
            self._send_file(name, file, {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"'})
            return
        headers = {
            "Location": f"http://localhost:{self.server.server_port}/large/{file.sha256}/{name}",
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{file.sha256}"',
            "X-Linked-Size": str(file.size_bytes),
        }
        self._answer(b"", headers, status=302)

    def _send_large(self, sha256: str, name: str) -> None:
        if token := self.headers.get("Authorization"):
            self.server.hub.tokens_elsewhere.append(token)
        for repository in self.server.hub.repositories.values():
            for files in repository.commits.values():
                if name in files and files[name].sha256 == sha256:
                    self._send_file(name, files[name], {"ETag": f'"{sha256}"'})
                    return
        raise _Refused(404, "no such content")

    def _send_file(self, name: str, file: StoredFile, headers: dict[str, str]) -> None:
        content = self.server.hub.faults.instead.get(name, file.content)
        begin = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first_byte = int(begin[1]) if begin else 0
        if first_byte and first_byte >= len(content):
            raise _Refused(416, "no such range")
        if begin:
            last_byte = min(int(begin[2] or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {first_byte}-{last_byte}/{len(content)}"
            content = content[: last_byte + 1]
        self.send_response(206 if begin else 200)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - first_byte))
        self.end_headers()
        if self.command == "GET":
            self._send_content(name, content, first_byte)

    def _send_content(self, name: str, content: bytes, first_byte: int) -> None:
        hub, sent = self.server.hub, Sent(name, first_byte)
        hub.sent.append(sent)
        cut, stall = hub.faults.cut.pop(name, None), hub.faults.stall.get(name)
        end = min(place for place in (cut, stall, len(content)) if place is not None)
        for place in range(first_byte, end, _PIECE_BYTES):
            piece = content[place : min(place + _PIECE_BYTES, end)]
            sent.count += len(piece)  # before the write: a client that has it all finds it counted
            self.wfile.write(piece)
        if end < len(content):
            if stall is not None:
                hub.stalled.set()
                hub.closing.wait()
            self.close_connection = True

    def _answer(
        self, body: bytes, headers: Mapping[str, str] | None = None, *, status: int = 200
    ) -> None:
        self.send_response(status)
        for header, value in (headers or {}).items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
