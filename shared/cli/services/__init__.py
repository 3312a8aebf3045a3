"""Services of launchd or systemd that run our commands."""
