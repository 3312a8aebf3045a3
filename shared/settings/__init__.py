"""The settings of a cluster: what may stand in `cluster.yaml`, and how it is read."""

from shared.settings.load import load_settings, settings_file
from shared.settings.tree import ClusterSettings

__all__ = ["ClusterSettings", "load_settings", "settings_file"]
