"""The containers: read as what they are meant for, by their own tool where it is there."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.examples import DEPLOY
from tests.processes import SCRIPTS

FOLDER = DEPLOY / "containers"
ROOT = DEPLOY.parent


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())[
        "services"
    ]
    return found


def has_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and (
        subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.skipif(not has_compose(), reason="docker compose is not there")
def test_compose_takes_it() -> None:
    subprocess.run(["docker", "compose", "config", "--quiet"], cwd=FOLDER, check=True)


def test_each_has_a_place_of_its_own_and_few_rights(services: dict[str, dict[str, Any]]) -> None:
    volumes = {name: service["volumes"] for name, service in services.items()}
    assert volumes["admin"] == volumes["nats"]
    own = [tuple(volumes[name]) for name in services if name != "admin"]
    assert len(set(own)) == len(own)
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["logging"]["options"]["max-size"]
        assert ("restart" in service) and (service["restart"] == "no") == (name == "admin")


def test_the_commands_are_ours(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        program, *flags = service["command"]
        shown = subprocess.run(
            [SCRIPTS / program, "--help"], capture_output=True, text=True, check=False
        ) if program != "nats-server" else None  # fmt: skip
        for flag in flags:
            if flag.startswith("--") and shown is not None:
                assert flag in shown.stdout


def test_the_image_copies_what_is_there() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source
    assert "USER 1000" in text and "--require-hashes" in text


def test_the_image_has_the_pins_of_all() -> None:
    def pins(path: Path) -> dict[str, str]:
        found = re.findall(r"^([A-Za-z0-9._-]+(?:\[.*\])?)==(\S+)", path.read_text(), re.MULTILINE)
        return {re.sub(r"\[.*", "", name): version for name, version in found}

    everything, ours = pins(ROOT / "requirements.txt"), pins(FOLDER / "requirements.txt")
    assert ours.items() <= everything.items(), "`make lock` renews them"
    assert {"nats-py", "starlette", "pydantic", "hatchling"} <= ours.keys()
    assert not {"pytest", "mypy", "ruff"} & ours.keys()
