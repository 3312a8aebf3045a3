"""The browser of this machine."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_APPS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)


def find_browser() -> str | None:
    """The program that $CHROMIUM names, else one of the usual names and places."""
    named = os.environ.get("CHROMIUM")
    found = [shutil.which(name) for name in ((named,) if named else NAMES)]
    return next(filter(None, found), None) or next(filter(os.path.exists, _APPS), None)


def browser_arguments() -> list[str]:
    """Root has no sandbox."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []
