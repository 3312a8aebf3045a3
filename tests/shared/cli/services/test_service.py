"""`cluster service`, with what this machine has of launchd and systemd."""

import json
import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import SCRIPTS


class Home:
    """A home of its own, in which the command runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "XDG_RUNTIME_DIR": str(folder / "nobody-is-here"),
        }

    def __call__(self, *arguments: str, fails: int = 0) -> str:
        """What it says; on stderr where it fails."""
        done = subprocess.run(
            [SCRIPTS / "cluster", "service", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def files(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()
        )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def plist(text: str) -> Any:
    return plistlib.loads(text.encode())


def test_what_is_shown_runs_this_program_here_with_these_settings(home: Home) -> None:
    (home.folder / "my settings.yaml").write_text("worker: {drain_timeout_ms: 90500}\n")
    shown = plist(home("show", "worker", "--for", "launchd", "--config", "my settings.yaml"))
    program, *arguments = shown["ProgramArguments"]
    assert program == str(SCRIPTS / "worker") and Path(program).is_file()
    assert arguments == ["--config", str(home.folder / "my settings.yaml")]
    assert shown["WorkingDirectory"] == str(home.folder)
    assert shown["ExitTimeOut"] == 91 + 15, "longer than its streams may take"
    shown = home("show", "worker", "--for", "systemd", "--config", "my settings.yaml")
    assert f'ExecStart={program} --config "{arguments[1]}"' in shown
    assert "TimeoutStopSec=106" in shown
    assert home.files() == ["my settings.yaml"], "nothing is written"


def test_the_server_runs_in_its_folder(home: Home) -> None:
    assert "cluster auth init" in home("show", "nats", fails=2)
    folder = home.folder / "a b"
    folder.mkdir()
    (folder / "nats-server.json").write_text("{}")
    shown = plist(home("show", "nats", "--for", "launchd", "--folder", "a b"))
    assert shown["WorkingDirectory"] == str(folder)
    assert shown["ProgramArguments"][:3] == [
        str(SCRIPTS / "nats-server"), "--config", "nats-server.json"
    ]  # fmt: skip
    shown = home("show", "nats", "--for", "systemd", "--folder", "a b", "--system")
    assert f'ReadWritePaths="-{folder}"' in shown


def test_files_are_looked_for_where_the_terminal_has_them(home: Home) -> None:
    home.environment |= {"XDG_DATA_HOME": "/data", "HF_HOME": "/models", "HF_TOKEN": "hf_secret"}
    shown = home("show", "worker", "--for", "systemd", "--system")
    assert "Environment=XDG_DATA_HOME=/data" in shown and "Environment=HF_HOME=/models" in shown
    assert "ReadWritePaths=-/data/mlx-nats-cluster" in shown and "-/models" in shown
    assert "hf_secret" not in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("--token", "abc"),
        ("--token=abc",),
        ("--nats", "nats://ada:abc@host"),
    ],
)
def test_a_secret_is_refused(home: Home, arguments: tuple[str, ...]) -> None:
    told = home("show", "worker", "--", *arguments, fails=2)
    assert "must not contain a secret" in told and "abc" not in told


def test_wrong_orders_say_what_to_do(home: Home) -> None:
    assert "--folder is for the service nats" in home("show", "worker", "--folder", "x", fails=2)
    assert "needs --system" in home("show", "wired-limit", "9000", fails=2)
    assert "one number of MB" in home("show", "wired-limit", "--system", "a lot", fails=2)
    assert "takes no arguments" in home("show", "awake", "x", fails=2)
    assert "no such file" in home("show", "worker", "--config", "x.yaml", fails=2).lower()
    assert "is not an installed user service" in home("uninstall", "worker", fails=2)
    shown = plist(home("show", "wired-limit", "9000", "--system", "--for", "launchd"))
    assert shown["ProgramArguments"] == ["/usr/sbin/sysctl", "iogpu.wired_limit_mb=9000"]
    assert shown["UserName"] == "root" and "KeepAlive" not in shown


@pytest.mark.skipif(sys.platform == "darwin", reason="would be loaded on a Mac")
def test_where_it_cannot_be_started_it_says_how_and_takes_all_away_again(home: Home) -> None:
    unit = ".config/systemd/user/mlx-nats-cluster.worker.service"
    told = home("install", "worker", fails=2)
    assert f"{unit} is written, but the service does not run: systemctl" in told
    assert unit in home.files()
    assert json.loads(home("ls", "--json"))["services"] == [
        {"service": "worker", "level": "user", "file": str(home.folder / unit)}
    ]
    home("uninstall", "worker")
    assert home.files() == [] and json.loads(home("ls", "--json"))["services"] == []
    home.environment["PATH"] = str(home.folder)
    told = home("install", "worker", fails=2)
    assert "systemctl is missing" in told and "systemctl --user enable" in told
    home("uninstall", "worker")
    assert home.files() == []
    assert "is a service for Macs only" in home("install", "awake", fails=2)


@pytest.mark.skipif(shutil.which("launchctl") is None, reason="launchd is on Macs only")
def test_launchd_runs_it_and_forgets_it(home: Home) -> None:
    told = json.loads(home("install", "awake", "--json"))
    try:
        target = f"gui/{os.getuid()}/mlx-nats-cluster.awake"
        assert subprocess.run(["launchctl", "print", target], check=False).returncode == 0
    finally:
        home("uninstall", "awake")
    assert not Path(told["file"]).exists()
    assert subprocess.run(["launchctl", "print", target], check=False).returncode != 0
