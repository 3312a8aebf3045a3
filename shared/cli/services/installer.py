"""Installation and removal of services."""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from shared.cli.services.service import Level, SystemService, UserAccount, label_of
from shared.cli.services.service_manager import ServiceManager, ServiceManagerCommand
from shared.errors import SettingsError

_POLL_S = 0.5


def install(service: SystemService, level: Level, supervisor: ServiceManager) -> Path:
    """Write the service file, and start the service. Return the path of the file.

    Raises:
        SettingsError: the file cannot be written, or the service does not start; the file stays.
    """
    path = supervisor.unit_path(service.account, service.label, level)
    content = supervisor.unit_content(service, level)
    try:
        for folder in _required_folders(service):
            _make_folder(folder, service.account)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
    except OSError as error:
        raise SettingsError(f"{error.filename}: {error.strerror}") from None
    try:
        _run_all(supervisor.start_commands(service, level), supervisor)
    except SettingsError as error:
        raise SettingsError(
            f"{path} is written, but the service does not run: {error.message}"
        ) from None
    return path


def uninstall(
    name: str, account: UserAccount, level: Level, supervisor: ServiceManager, logs: Path | None
) -> bool:
    """Stop a service, and delete its file and logs; return False if it is not installed.

    Args:
        logs: the folder of service logs; None if the supervisor stores them.

    Raises:
        SettingsError: the service cannot be stopped, or its files cannot be deleted.
    """
    label = label_of(name)
    path = supervisor.unit_path(account, label, level)
    if not path.exists():
        return False
    has_tool = shutil.which(supervisor.tool) is not None  # without the tool no service runs
    if has_tool:
        _run_all(supervisor.stop_commands(account, label, level), supervisor)
    try:
        path.unlink()
        if logs is not None and logs.is_dir():
            _remove_logs(logs, name)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    if has_tool:
        _run_all(supervisor.cleanup_commands(label, level), supervisor)
    return True


def _remove_logs(folder: Path, name: str) -> None:
    for kind in ("log", "err"):
        for path in folder.glob(f"{name}.{kind}*"):
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _required_folders(service: SystemService) -> Sequence[Path]:
    log_folders = [
        path.parent for path in (service.log, service.self_rotated_log, service.stderr_file) if path
    ]
    return [*log_folders, *service.writable_folders]


def _make_folder(folder: Path, account: UserAccount) -> None:
    """Create a folder with its missing parents, all owned by the account."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(each, account.uid)


def _run_all(commands: Sequence[ServiceManagerCommand], supervisor: ServiceManager) -> None:
    if shutil.which(supervisor.tool) is None:
        to_run = [shlex.join(each.command) for each in commands if not each.retry_until_fails_s]
        raise SettingsError(
            f"{supervisor.tool} is missing; where {supervisor.name} runs: {'; '.join(to_run)}"
        )
    for command in commands:
        deadline = time.monotonic() + command.retry_until_fails_s
        while not (done := _run(command)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not done:
            raise SettingsError(f"{shlex.join(command.command)}: the service has not ended yet")


def _run(command: ServiceManagerCommand) -> bool:
    """Run a command; return whether it is done.

    Raises:
        SettingsError: the command failed.
    """
    result = subprocess.run(command.command, capture_output=True, text=True, check=False)
    if command.retry_until_fails_s:
        return result.returncode != 0
    if result.returncode != 0 and not command.may_fail:
        reason = (result.stderr or result.stdout).strip() or f"exit status {result.returncode}"
        raise SettingsError(f"{shlex.join(command.command)}: {reason}")
    return True
