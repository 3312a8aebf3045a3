"""Bad settings and flags at every command: status 2, and a message that says what and where."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from controller.main import main as controller
from shared.cli.main import main as cluster
from shared.errors import SettingsError
from shared.settings import load_settings
from tests.processes import SCRIPTS, ClusterProcess, RunningNats
from worker.main import main as worker

SECURED = False  # commands are run as they are typed, without keys

_COMMANDS: dict[str, tuple[click.Command, tuple[str, ...]]] = {
    "controller": (controller, ()),
    "worker": (worker, ()),
    "cluster up": (cluster, ("up", "--nats-port", "0")),
    "cluster run": (cluster, ("run", "Hello")),
    "cluster chat": (cluster, ("chat",)),
    "cluster status": (cluster, ("status",)),
    "cluster logs": (cluster, ("logs",)),
}
_CONNECTING = [name for name in _COMMANDS if name != "cluster up"]

_FILES: dict[str, tuple[bytes, list[str]]] = {
    "no number": (b"controller: {retry: {jitter: .nan}}\n", ["line 1", "retry.jitter", "nan"]),
    "merged keys": (
        b"models:\n  a: &a {path: x}\n  b: {path: y, <<: *a}\n",
        ["line 3", "models.b.<<: unknown key", "path"],
    ),
    "a section left open": (b"worker:\n", ["line 1", "worker: ", "dictionary"]),
    "a list": (b"- worker\n- controller\n", ["a mapping of settings"]),
    "a word": (b"worker\n", ["a mapping of settings"]),
    "no YAML": (b"worker: [\n", ["line 2", "no valid YAML"]),
    "two documents": (b"worker: {}\n---\nworker: {}\n", ["line 2", "no valid YAML"]),
    "a tab": (b"worker:\n\tid: a\n", ["line 2", "no valid YAML"]),
    "Python": (b"worker: {id: !!python/name:os.system ''}\n", ["line 1", "no valid YAML"]),
    "a list for a key": (b"[1, 2]: x", ["line 1: a key must be plain text"]),
    "no day": (b"worker: {id: 2026-02-30}", ["line 1", "no valid YAML"]),
    "no digits": (b"worker: {id: !!int twelve}", ["line 1", "no valid YAML"]),
    "5,000 deep": (b"[" * 5000, ["nested too deeply"]),
    "binary": (bytes(range(256)), ["not UTF-8"]),
    "Latin-1": ("worker: {labels: {room: Küche}}".encode("latin-1"), ["not UTF-8"]),
    "UTF-16": ("worker: {}".encode("utf-16"), ["not UTF-8"]),
    "zeros": (b"\0" * 1000, ["no valid YAML"]),
    "itself": (b"worker: &all {labels: *all}\n", ["nested without an end"]),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls one of our commands in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *arguments: str) -> Result:
        command, given = _COMMANDS[name]
        return CliRunner().invoke(command, [*given, *arguments], prog_name=name)

    return call


def _assert_refused(result: Result, words: list[str], status: int = 2) -> None:
    assert isinstance(result.exception, SystemExit), "no traceback"
    assert result.exit_code == status
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def _failure(load: Callable[[], object], *words: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        load()
    for word in words:
        assert word in caught.value.message
    return caught.value


# The loader, which all commands share.


@pytest.mark.parametrize("content", _FILES)
def test_a_bad_file_is_refused_with_its_place(content: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_bytes(_FILES[content][0])
    _failure(lambda: load_settings(file), str(file), *_FILES[content][1])


def _missing(folder: Path) -> Path:
    return folder / "none.yaml"


def _folder(folder: Path) -> Path:
    return folder


def _below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "cluster.yaml"


def _link_to_itself(folder: Path) -> Path:
    link = folder / "link.yaml"
    link.symlink_to(link)
    return link


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_missing, "no such file"),
        (_folder, "cannot be read: Is a directory"),
        (_below_a_file, "cannot be read: Not a directory"),
        (_link_to_itself, "cannot be read: Too many levels"),
    ],
)
def test_what_is_no_readable_file_is_refused(
    make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    _failure(lambda: load_settings(path), f"{path}: {words}")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("CLUSTER__WORKER__ENGINES__COUNT", "many", ["worker.engines.count", "'many'"]),
        ("CLUSTER__WORKER__ENGINES__COUNT", "", ["worker.engines.count", "''"]),
        ("CLUSTER__WORKER__ENGINES__COUNT", "65", ["worker.engines.count", "64", "'65'"]),
        ("CLUSTER__WORKER__ENGINES__COUNT__MAX", "2", ["nothing below this"]),
        ("cluster__worker__engines__count", "0", ["worker.engines.count", "'0'"]),
        ("CLUSTER__LOGGING__LEVEL", "loud", ["logging.level", "'debug'", "'loud'"]),
        ("CLUSTER__SKILLS", '{"chat": ', ["JSON"]),
        ("CLUSTER__SKILLS", '["chat"]', ["skills", "dictionary"]),
        ("CLUSTER__NATS", "nats://a:1", ["JSON"]),
        ("CLUSTER__NATS__SERVERS", "nats://a:1", ["JSON"]),
        ("CLUSTER__NATS__SERVERS", '["ftp://a:1"]', ["nats.servers.0", "nats://HOST:PORT"]),
    ],
)
def test_a_bad_variable_is_refused_with_its_name(
    variable: str, value: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    _failure(load_settings, f"environment variable {variable}: ", *words)


@pytest.mark.parametrize(
    "url",
    ["", "nats://", "ftp://a:1", "http://a:1", "nats://a:99999", "nats://a:b", "nats://[::1", ","],
)
def test_a_bad_address_is_refused(url: str, run: Callable[..., Result]) -> None:
    _assert_refused(run("cluster status", "--nats", url), ["nats.servers.0: "])


@pytest.mark.parametrize("identity", ["", "two words", "a.b", "*", "x" * 65, "é", "a\n"])
def test_a_bad_name_is_refused_with_what_is_allowed(
    identity: str, run: Callable[..., Result]
) -> None:
    words = ["command line: worker.id: ", "[A-Za-z0-9_-]{1,64}", repr(identity)]
    _assert_refused(run("worker", "--id", identity), words)


# Every command goes through it.


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_is_stopped_by_bad_settings(
    name: str, run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("worker: {colour: red}\n")
    _assert_refused(run(name, "--config", str(file)), [f"{file}, line 1: worker.colour: unknown"])
    _assert_refused(run(name, "--nonsense"), ["--nonsense", "No such option"])
    with monkeypatch.context() as variables:
        variables.setenv("CLUSTER_CONFIG", "none.yaml")
        _assert_refused(run(name), ["none.yaml: no such file"])
    monkeypatch.setenv("CLUSTER__WORKER__ENGINES__COUNT", "many")
    _assert_refused(run(name), ["environment variable CLUSTER__WORKER__ENGINES__COUNT: "])


@pytest.mark.parametrize("name", _CONNECTING)
def test_a_bad_address_is_said_to_come_from_the_command_line(
    name: str, run: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text('nats: {servers: ["nats://127.0.0.1:1"]}\n')
    result = run(name, "--config", str(file), "--nats", "ftp://a:1")
    _assert_refused(result, ["command line: nats.servers.0: "])
    assert str(file) not in result.stderr


def test_a_bad_name_of_a_controller_is_refused(run: Callable[..., Result]) -> None:
    _assert_refused(run("controller", "--id", "a.b"), ["command line: controller.id: ", "'a.b'"])


def test_with_json_a_file_with_a_broken_name_is_named_too(run: Callable[..., Result]) -> None:
    _assert_refused(run("worker", "--json", "--config", "\udcff.yaml"), ["no such file"])


# What the settings take and should not, or take too long over.


def _failure_of(file: Path, text: str) -> SettingsError:
    file.write_text(text)
    return _failure(lambda: load_settings(file), str(file))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('skills: {chat: [""]}', "skills.chat.0"),
        ('worker: {models: [""]}', "worker.models.0"),
        ('models: {"": {path: x}}', "models."),
        ('worker: {pre_warming: {models: [{model: ""}]}}', "worker.pre_warming.models.0.model"),
    ],
)
def test_a_model_without_a_name_is_refused(text: str, key: str, tmp_path: Path) -> None:
    error = _failure_of(tmp_path / "cluster.yaml", text)
    assert error.param is not None and error.param.startswith(key)


def test_an_error_about_a_long_value_is_short(tmp_path: Path) -> None:
    error = _failure_of(tmp_path / "cluster.yaml", f"worker: {{id: {'x' * 100_000}}}")
    assert len(error.message) < 2000


def test_a_file_that_no_person_wrote_is_refused(tmp_path: Path) -> None:
    _failure_of(tmp_path / "cluster.yaml", "# a comment\n" * 100_000)


def test_a_few_aliases_do_not_become_a_billion_values(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    lines = ["worker:", "  labels:", "    a0: &a0 [ha]"]
    for number in range(1, 10):
        many = ",".join([f"*a{number - 1}"] * 9)
        lines.append(f"    a{number}: &a{number} [{many}]")
    file.write_text("\n".join(lines))
    done = _run("sh", "-c", f'ulimit -t 2; exec {SCRIPTS / "controller"} --config "{file}"')
    assert done.returncode == 2
    assert str(file) in done.stderr and "Traceback" not in done.stderr


# Commands that get further than their settings.


def _run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--skill", "cooking"), "no skill 'cooking'; there are: chat"),
        (("--skill", "x" * 65), "the skill"),
        (("--skill", "*"), "the skill"),
        (("--skill", "two words"), "skill"),
        (("--skill", ""), "skill"),
        (("--skill", "a.b"), "skill"),
        (("--model", ""), "model: "),
        (("--model", "other"), "has no model 'other'"),
        (("--temperature", "nan"), "temperature: "),
        (("--top-p", "inf"), "top_p: "),
        (("--max-tokens", "-1"), "max_tokens: "),
        (("--seed", "-1"), "seed: "),
        (("--seed", "five"), "'--seed': 'five'"),
        (("--seed", str(10**20)), "seed"),
        (("--max-tokens", str(10**20)), "max_tokens"),
    ],
)
def test_a_bad_question_is_refused_with_its_flag(
    arguments: tuple[str, ...], words: str, run: Callable[..., Result], tiny_cluster: ClusterProcess
) -> None:
    result = run("cluster run", "--nats", tiny_cluster.url, *arguments)
    assert isinstance(result.exception, SystemExit) and result.exit_code in (1, 2)
    assert result.stdout == ""
    assert words in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lines", "many"), "'--lines': 'many'"),
        (("--level", "loud"), "'--level': 'loud'"),
        (("--lines", "-1"), "--lines"),
    ],
)
def test_a_bad_question_for_logs_is_refused_with_its_flag(
    arguments: tuple[str, ...], words: str, run: Callable[..., Result], nats_server: RunningNats
) -> None:
    result = run("cluster logs", "--no-follow", "--nats", nats_server.url, *arguments)
    _assert_refused(result, [words])


def test_a_worker_without_a_name_for_its_model_says_so(nats_server: RunningNats) -> None:
    worker_command = (str(SCRIPTS / "worker"), "--nats", nats_server.url, "--id", "nameless")
    done = _run(*worker_command, "--model", "")
    assert done.returncode == 2
    assert "--model" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--colour", "red"), "--colour"),
        (("--config", "none.yaml"), "none.yaml: no such file"),
        (("--port", "70000"), "--port"),
        (("--keys-file", "/none/keys.yaml"), "/none/keys.yaml: No such file"),
        (("--host", ""), "gateway.host"),
        (("keys", "add"), "CLIENT"),
    ],
)
def test_the_gateway_refuses_what_it_does_not_know(arguments: tuple[str, ...], said: str) -> None:
    done = _run(str(SCRIPTS / "gateway"), *arguments)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
