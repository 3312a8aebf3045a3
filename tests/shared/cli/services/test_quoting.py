"""Whatever a path or an argument holds, the supervisor reads what was meant."""

import plistlib
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.cli.services.launchd import property_list
from shared.cli.services.service import SystemService, UserAccount
from shared.cli.services.systemd import unit
from shared.errors import SettingsError

ADA = UserAccount("ada", 501, "staff", Path("/Users/ada"))
_NO_BREAK = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs", "Cc"]))


def service(*arguments: str, folder: str = "/f") -> SystemService:
    return SystemService(
        "worker", "A worker", ("/p", *arguments), ADA, Path(folder), {"A": arguments[0]}
    )


def read_by_systemd(value: str) -> str:
    """What it makes of a word outside of commands, as systemd.syntax(7) says."""
    (word,) = shlex.split(value)
    return word.replace("%%", "%")


@given(_NO_BREAK.filter(lambda text: "\\" not in text))
def test_arguments_come_through_systemd(argument: str) -> None:
    lines = dict(
        line.split("=", 1)
        for line in unit(service(argument), "user").splitlines()
        if line.startswith(("ExecStart=", "Environment="))
    )
    command = shlex.split(lines["ExecStart"])
    assert [word.replace("%%", "%").replace("$$", "$") for word in command] == ["/p", argument]
    assert read_by_systemd(lines["Environment"]) == f"A={argument}"


@given(_NO_BREAK)
def test_arguments_come_through_launchd(argument: str) -> None:
    values = plistlib.loads(property_list(service(argument), "user"))
    assert values["ProgramArguments"] == ["/p", argument]
    assert values["EnvironmentVariables"]["A"] == argument


@pytest.mark.parametrize("text", ["a\nExecStartPre=/bin/rm", "a\rb"])
def test_a_line_break_is_refused(text: str) -> None:
    for wrong in (service(text), service("a", folder=text)):
        with pytest.raises(SettingsError, match="line break"):
            unit(wrong, "user")
