"""The commands `cluster`, `controller`, `gateway` and `worker`."""

import sys

_OWN = ("controller", "shared", "worker", "mlx_nats_cluster")


def cluster() -> None:
    from shared.cli.main import main

    main()


def controller() -> None:
    from controller.main import main

    main()


def gateway() -> None:
    from controller.gateway.main import main

    main()


def worker() -> None:
    """Exit with status 2 if the packages of the extra `worker` are not installed."""
    try:
        from worker.main import main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OWN:
            raise
        sys.exit(
            f"worker: the package {error.name} is not installed. A worker needs: "
            "pip install 'mlx-nats-cluster[worker]'"
        )
    main()
