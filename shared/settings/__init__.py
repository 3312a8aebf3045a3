"""The settings of a cluster: the contents of `cluster.yaml`, and their loading."""

from shared.settings.load import load_settings, settings_file
from shared.settings.tree import ClusterSettings

__all__ = ["ClusterSettings", "load_settings", "settings_file"]
