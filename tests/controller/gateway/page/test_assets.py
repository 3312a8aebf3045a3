"""The files of the page, as a browser gets them from a real gateway."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import controller.gateway.page
from controller.gateway.page.assets import INDEX, _read, wants_page
from shared.version import VERSION
from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process, make_key
from tests.controller.gateway.raw_http import Answer, answers
from tests.processes import ClusterProcess

_STATIC = Path(controller.gateway.page.__file__).parent / "static"
_FILES = sorted(
    {INDEX}
    | {path.relative_to(_STATIC).as_posix() for path in _STATIC.rglob("*") if path.is_file()}
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
_PROGRAMS = ["*/*", "application/json", "", "text/event-stream", "text/plain"]


def _checked(answer: httpx.Response) -> httpx.Response:
    """With the headers that every file has."""
    assert answer.headers["content-security-policy"] == _POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["vary"] == "accept"
    assert re.fullmatch(r'"[0-9a-f]{16}"', answer.headers["etag"])
    return answer


@pytest.mark.parametrize("name", _FILES)
def test_every_file_is_served_as_it_is_with_the_policy_of_the_page(
    http: httpx.Client, name: str
) -> None:
    answer = _checked(http.get(f"/ui/{name}"))
    assert answer.status_code == 200
    assert answer.content == (_STATIC / name).read_bytes()
    assert answer.headers["content-type"] == _TYPES[Path(name).suffix]


@pytest.mark.parametrize("name", _FILES)
def test_what_a_browser_has_already_is_not_sent_again(http: httpx.Client, name: str) -> None:
    etag = http.get(f"/ui/{name}").headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}'):
        again = _checked(http.get(f"/ui/{name}", headers={"if-none-match": known}))
        assert (again.status_code, again.content) == (304, b"")
    other = http.get(f"/ui/{name}", headers={"if-none-match": '"0123456789abcdef"'})
    assert other.status_code == 200 and other.content


def test_two_files_have_two_etags(http: httpx.Client) -> None:
    etags = {http.get(f"/ui/{name}").headers["etag"] for name in _FILES}
    bodies = {http.get(f"/ui/{name}").content for name in _FILES}
    assert len(etags) == len(bodies)


@pytest.mark.parametrize("path", ["/ui", "/ui/index.html"])
def test_the_page_is_under_its_own_path_for_everybody(http: httpx.Client, path: str) -> None:
    for accept in (_BROWSER, *_PROGRAMS):
        answer = _checked(http.get(path, headers={"accept": accept}))
        assert answer.headers["content-type"] == _TYPES[".html"]
        assert answer.text.lower().startswith("<!doctype html>")


def test_the_root_is_the_page_for_browsers(http: httpx.Client) -> None:
    page = _checked(http.get("/", headers={"accept": _BROWSER}))
    assert page.content == http.get("/ui").content and page.status_code == 200


@pytest.mark.parametrize("accept", _PROGRAMS)
def test_the_root_is_json_for_programs(http: httpx.Client, accept: str) -> None:
    answer = http.get("/", headers={"accept": accept})
    assert answer.json() == {
        "name": "MLX cluster gateway", "version": VERSION, "paths": "/openapi.json"
    }  # fmt: skip
    assert answer.headers["vary"] == "accept", "else a cache mixes them up"


@pytest.mark.parametrize(
    ("accept", "page"),
    [(_BROWSER, True), ("text/html", True), ("*/*", False), ("application/json", False)],
)
def test_who_accepts_html_wants_the_page(accept: str, page: bool) -> None:
    assert wants_page(accept) is page


def test_what_the_page_refers_to_is_served_and_nothing_stands_in_it(http: httpx.Client) -> None:
    """The policy forbids scripts, styles and handlers within the page itself."""
    text = http.get("/ui").text
    for target in re.findall(r'\b(?:src|href)="([^"]*)"', text):
        if not target.startswith(("#", "data:")):
            assert target.startswith("/ui/"), target
            assert http.get(target).status_code == 200, target
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=", text) == []


@pytest.mark.parametrize("name", [name for name in _FILES if name.endswith(".js")])
def test_modules_import_files_that_there_are(name: str) -> None:
    text = (_STATIC / name).read_text()
    for target in re.findall(r'(?:\bfrom|\bimport)\s*\(?"([^"]+)"', text):
        assert target.startswith(("./", "../")), target
        resolved = ((_STATIC / name).parent / target).resolve()
        assert resolved.is_relative_to(_STATIC.resolve()) and resolved.is_file(), target


# What is not there.


def _raw(gateway: GatewayProcess, path: str) -> Answer:
    """The answer to a path that no client library would send as it is."""
    request = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    (answer,) = answers(gateway, request.encode("latin-1"))
    return answer


@pytest.mark.parametrize(
    "path",
    [
        "/ui/", "/ui/nonsense", "/ui/nonsense.js", "/ui/INDEX.HTML", "/ui/index.html/",
        "/ui/./index.html", "/ui//index.html", "/ui/static/index.html", "/ui/assets.py",
        "/ui/__init__.py", "/ui/..", "/ui/../..", "/ui/../assets.py", "/ui/../../app.py",
        "/ui/%2e%2e/assets.py", "/ui/..%2fassets.py", "/ui/%2e%2e%2fassets.py",
        "/ui/%252e%252e%252fassets.py", "/ui/..%5cassets.py", "/ui/....//assets.py",
        "/ui/%2fetc%2fpasswd", "/ui//etc/passwd", "/ui/index.html%00", "/ui/%00",
        "/ui/index.html%00.js", "/ui/../../../../../../etc/passwd", "/ui/%c0%ae%c0%ae/assets.py",
        "/ui/%ff", "/ui/x/../index.html", "/ui/file:///etc/passwd", "/ui/" + "x" * 5000,
    ],
)  # fmt: skip
def test_nothing_but_the_files_is_served(gateway: GatewayProcess, path: str) -> None:
    answer = _raw(gateway, path)
    assert answer.status == 404, answer
    assert answer.error["code"] == "not_found" and len(answer.error["message"]) < 300
    assert b"import" not in answer.body and b"root:" not in answer.body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_files_are_only_read(http: httpx.Client, method: str) -> None:
    for path in ("/ui", "/ui/index.html"):
        assert http.request(method, path).status_code == 405


def test_a_gateway_without_the_files_has_no_page(tmp_path: Path) -> None:
    assert _read(tmp_path / "static", "") == []


def test_only_files_of_the_pages_kinds_are_read_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "views").mkdir()
    for name in ("index.html", "views/main.js", "notes.txt", "x.py", ".env"):
        (tmp_path / name).write_text("x")
    assert sorted(name for name, _ in _read(tmp_path, "")) == ["index.html", "views/main.js"]


# Where keys are required.


@pytest.fixture
def keyed(tiny_cluster: ClusterProcess, tmp_path: Path) -> Iterator[GatewayProcess]:
    file = tmp_path / "keys.yaml"
    make_key(file, "ada")
    with gateway_process(tiny_cluster.url, "--keys-file", str(file)) as process:
        yield process


def test_the_page_itself_needs_no_key(keyed: GatewayProcess) -> None:
    for path in ("/ui", "/ui/index.html"):
        assert _checked(httpx.get(keyed.url + path)).status_code == 200
    assert httpx.get(f"{keyed.url}/").status_code == 200
    assert httpx.get(f"{keyed.url}/cluster/events").status_code == 401
