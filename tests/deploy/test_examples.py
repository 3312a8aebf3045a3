"""The service files in deploy/: made by the code, sound by the tools of their own."""

import plistlib
import re
import shutil
import stat
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from shared.cli.services.catalogue import PROGRAMS
from shared.settings import ClusterSettings
from tests.deploy.examples import DEPLOY, examples

_STOP_S = ClusterSettings().worker.drain_timeout_ms / 1000
PLISTS = sorted((DEPLOY / "launchd").glob("*.plist"))
UNITS = sorted((DEPLOY / "systemd").glob("*/*.service"))
_SECRET = re.compile(r"\bSU[A-Z2-7]{56}\b|mlx1\.[\w-]{20}|PRIVATE KEY|token", re.IGNORECASE)


def test_what_stands_there_is_what_the_code_makes() -> None:
    made = examples()
    kept = {
        str(path.relative_to(DEPLOY)): path.read_bytes()
        for folder in ("grafana", "launchd", "newsyslog.d", "systemd")
        for path in (DEPLOY / folder).rglob("*")
        if path.is_file()
    }
    assert kept == made, "`make docs` renews them"


def test_no_file_has_a_secret_or_can_be_run() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix in (".plist", ".service", ".conf"):
            assert not _SECRET.search(path.read_text()), path
            assert not path.stat().st_mode & stat.S_IXUSR, path


@pytest.mark.parametrize("path", PLISTS, ids=lambda path: path.stem)
def test_a_property_list(path: Path) -> None:
    values = plistlib.loads(path.read_bytes())
    assert values["Label"] == path.stem and values["RunAtLoad"] is True
    assert all(argument for argument in values["ProgramArguments"])
    assert Path(values["ProgramArguments"][0]).is_absolute()
    name = path.stem.removeprefix("mlx-nats-cluster.")
    assert ("KeepAlive" in values) == (name != "wired-limit")
    if "KeepAlive" in values:
        assert values["KeepAlive"] == {"SuccessfulExit": False}
        assert values["ThrottleInterval"] >= 10
        assert values["SoftResourceLimits"]["NumberOfFiles"] > 256
    if name in ("worker", "gateway"):
        assert values["ExitTimeOut"] > _STOP_S
    if name in (*PROGRAMS, "nats"):
        assert values["ProcessType"] == "Interactive" and values["Umask"] == 0o077
    if name == "awake":
        assert values["ProgramArguments"] == ["/usr/bin/caffeinate", "-is"]


@pytest.mark.parametrize("path", PLISTS, ids=lambda path: path.stem)
def test_a_property_list_by_its_own_tool(path: Path) -> None:
    if shutil.which("plutil") is None:
        pytest.skip("plutil is on Macs only")
    subprocess.run(["plutil", "-lint", path], check=True)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_unit(path: Path) -> None:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(path)
    service = parser["Service"]
    assert service["Restart"] == "on-failure" and service["RestartPreventExitStatus"] == "2"
    assert service["KillMode"] == "mixed" and service["NoNewPrivileges"] == "yes"
    assert int(service["LimitNOFILE"]) > 1024
    if path.stem.endswith(("worker", "gateway")):
        assert int(service["TimeoutStopSec"]) > _STOP_S
    system = path.parent.name == "system"
    assert parser["Install"]["WantedBy"] == ("multi-user.target" if system else "default.target")
    assert (service.get("ProtectSystem"), service.get("PrivateTmp"), service.get("User")) == (
        ("strict", "yes", "ada") if system else (None, None, None)
    )


@pytest.mark.parametrize("path", UNITS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_unit_by_its_own_tool(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is where systemd is")
    unit = tmp_path / path.name  # of a program and a user that are there
    text = re.sub(r"/home/ada/\S+/\.venv/bin/\S+", shutil.which("true") or "", path.read_text())
    unit.write_text(text.replace("User=ada", "User=daemon"))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_logs_are_rotated_by_lines_of_seven_fields() -> None:
    files = sorted((DEPLOY / "newsyslog.d").glob("*.conf"))
    assert [file.stem for file in files] == [
        f"mlx-nats-cluster.{name}" for name in sorted(PROGRAMS)
    ]
    for file in files:
        comment, line = file.read_text().splitlines()
        path, owner, mode, count, size, when, flags = line.split()
        assert comment.startswith("#") and Path(path).suffix == ".log"
        assert (owner, mode, when, flags) == ("ada:staff", "600", "*", "JN")
        assert int(count) > 0 and int(size) > 0
        plist = plistlib.loads((DEPLOY / "launchd" / f"{file.stem}.plist").read_bytes())
        assert plist["EnvironmentVariables"]["CLUSTER__LOGGING__FILE"] == path
