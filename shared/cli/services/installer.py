"""Puts services where the supervisor finds them, and takes them away without a trace."""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from shared.cli.services.service import Account, Level, SystemService, label_of
from shared.cli.services.supervisor import ServiceCommand, Supervisor
from shared.errors import SettingsError

_POLL_S = 0.5


def install(service: SystemService, level: Level, supervisor: Supervisor) -> Path:
    """Write its file, and have it started; returns the file.

    Raises:
        SettingsError: it cannot be written, or not be started. What was written stays.
    """
    path = supervisor.file(service.account, service.label, level)
    content = supervisor.content(service, level)
    try:
        for folder in _needed_folders(service):
            _make_folder(folder, service.account)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
    except OSError as error:
        raise SettingsError(f"{error.filename}: {error.strerror}") from None
    try:
        _carry_out(supervisor.load(service, level), supervisor)
    except SettingsError as error:
        raise SettingsError(
            f"{path} is written, but the service does not run: {error.message}"
        ) from None
    return path


def uninstall(
    name: str, account: Account, level: Level, supervisor: Supervisor, logs: Path | None
) -> bool:
    """End a service, remove its file and what it said; False where there is none.

    Args:
        logs: the folder of what services say, where the supervisor does not keep it.

    Raises:
        SettingsError: it cannot be ended or removed.
    """
    label = label_of(name)
    path = supervisor.file(account, label, level)
    if not path.exists():
        return False
    there = shutil.which(supervisor.tool) is not None  # else nothing runs
    if there:
        _carry_out(supervisor.unload(account, label, level), supervisor)
    try:
        path.unlink()
        if logs is not None and logs.is_dir():
            _remove_logs(logs, name)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    if there:
        _carry_out(supervisor.forget(label, level), supervisor)
    return True


def _remove_logs(folder: Path, name: str) -> None:
    for kind in ("log", "err"):
        for path in folder.glob(f"{name}.{kind}*"):
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _needed_folders(service: SystemService) -> Sequence[Path]:
    kept = [path.parent for path in (service.log, service.own_log, service.errors) if path]
    return [*kept, *service.writes]


def _make_folder(folder: Path, account: Account) -> None:
    """With the folders above it that are missing; all of them the account's."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(each, account.number)


def _carry_out(orders: Sequence[ServiceCommand], supervisor: Supervisor) -> None:
    if shutil.which(supervisor.tool) is None:
        todo = [shlex.join(order.command) for order in orders if not order.until_it_fails]
        raise SettingsError(
            f"{supervisor.tool} is not there; where {supervisor.name} runs: {'; '.join(todo)}"
        )
    for order in orders:
        deadline = time.monotonic() + order.until_it_fails
        while not (done := _run(order)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not done:
            raise SettingsError(f"{shlex.join(order.command)}: it has not ended yet")


def _run(order: ServiceCommand) -> bool:
    """Whether that is done.

    Raises:
        SettingsError: the supervisor refuses.
    """
    told = subprocess.run(order.command, capture_output=True, text=True, check=False)
    if order.until_it_fails:
        return told.returncode != 0
    if told.returncode != 0 and not order.may_fail:
        why = (told.stderr or told.stdout).strip() or f"exit status {told.returncode}"
        raise SettingsError(f"{shlex.join(order.command)}: {why}")
    return True
