"""The files in deploy/ that the code makes: `python -m tests.deploy.examples` renews them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from shared.cli.services.catalogue import (
    PROGRAMS,
    ServiceInstallContext,
    awake_service,
    nats_service,
    program_service,
    wired_limit_service,
)
from shared.cli.services.launchd import log_rotation, property_list, rotation_file
from shared.cli.services.service import Level, SystemService, UserAccount
from shared.cli.services.systemd import unit
from shared.settings import ClusterSettings
from tests.deploy.dashboard import dashboard

DEPLOY = Path(__file__).parents[2] / "deploy"
_LEVELS: tuple[Level, ...] = ("user", "system")
_WIRED_MB = 57_344


def examples() -> Mapping[str, bytes]:
    """What stands there, by path: services of Ada, who cloned the project into her home, and a
    dashboard."""
    return dict(_launchd()) | dict(_systemd()) | {"grafana/cluster.json": dashboard()}


def _launchd() -> Iterator[tuple[str, bytes]]:
    home = Path("/Users/ada")
    data = home / "Library/Application Support/mlx-nats-cluster"
    context = _context(
        UserAccount("ada", 501, "staff", home), data, logs=home / "Library/Logs/mlx-nats-cluster"
    )
    agents = [*_services(context), awake_service(context)]
    for service in agents:
        yield f"launchd/{service.label}.plist", property_list(service, "user")
        if (lines := log_rotation(service)) is not None:
            yield f"newsyslog.d/{rotation_file(service.label).name}", lines.encode()
    limit = wired_limit_service(context, _WIRED_MB)
    yield f"launchd/{limit.label}.plist", property_list(limit, "system")


def _systemd() -> Iterator[tuple[str, bytes]]:
    home = Path("/home/ada")
    account = UserAccount("ada", 1000, "ada", home)
    context = _context(account, home / ".local/share/mlx-nats-cluster", logs=None)
    for service in _services(context):
        for level in _LEVELS:
            yield f"systemd/{level}/{service.label}.service", unit(service, level).encode()


def _services(context: ServiceInstallContext) -> list[SystemService]:
    ours = [program_service(name, context, ClusterSettings(), ()) for name in PROGRAMS]
    return [nats_service(context, context.data / "access"), *ours]


def _context(account: UserAccount, data: Path, *, logs: Path | None) -> ServiceInstallContext:
    clone = account.home / "mlx-nats-cluster"
    cache = account.home / ("Library/Caches" if logs else ".cache")
    return ServiceInstallContext(
        account=account,
        program=lambda name: str(clone / ".venv/bin" / name),
        folder=clone,
        config=clone / "config/cluster.yaml",
        environment={},
        logs=logs,
        data=data,
        caches=(cache / "mlx-nats-cluster", account.home / ".cache/huggingface"),
    )


def main() -> None:
    for path, content in examples().items():
        (DEPLOY / path).parent.mkdir(parents=True, exist_ok=True)
        (DEPLOY / path).write_bytes(content)


if __name__ == "__main__":
    main()
