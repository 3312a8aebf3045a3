"""The model that a cluster on this machine serves."""

import subprocess
from typing import Any

from shared.cli.local.programs import our_program
from shared.errors import ModelError
from shared.settings import ClusterSettings
from shared.settings.base import DEMO_MODEL


def model_flags(model: str | None) -> dict[str, Any]:
    """The settings that `--model` stands for."""
    if model is None:
        return {}
    return {"skills": {"chat": [model]}, "worker": {"models": [model]}}


def fetch_demo_model(settings: ClusterSettings) -> None:
    """Fetch it in the foreground, with its progress bar, before several workers need it.

    Raises:
        ModelError: it could not be fetched; why is on stderr.
    """
    if DEMO_MODEL in settings.pre_warmed_models and DEMO_MODEL not in settings.models:
        command = [our_program("worker"), "--fetch", DEMO_MODEL]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
            raise ModelError("the demo model is not there; see above")
