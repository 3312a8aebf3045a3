"""The model of a cluster on this machine."""

import subprocess
from typing import Any

from shared.cli.local.programs import program_path
from shared.errors import ModelError
from shared.settings import ClusterSettings
from shared.settings.base import DEMO_MODEL


def model_flags(model: str | None) -> dict[str, Any]:
    """Return the settings of the option `--model`."""
    if model is None:
        return {}
    return {"skills": {"chat": [model]}, "worker": {"models": [model]}}


def fetch_demo_model(settings: ClusterSettings) -> None:
    """Download the demo model with a progress bar, before several workers need it.

    Raises:
        ModelError: the download failed; the reason is on stderr.
    """
    if DEMO_MODEL in settings.pre_warmed_models and DEMO_MODEL not in settings.models:
        command = [program_path("worker"), "--fetch", DEMO_MODEL]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
            raise ModelError("the demo model could not be downloaded; see above")
