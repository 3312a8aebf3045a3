"""Commands of ours that launchd or systemd keeps running."""
