"""Commands that run our modules."""

import sys

_PREFIX = __name__.removesuffix("shared.python_module")
"""In a wheel our packages are inside another one."""


def python_module(name: str) -> list[str]:
    """The command that runs a module of ours, named as in the source tree, with this Python.

    The current folder is not on its path: a file there cannot replace a module.
    """
    return [sys.executable, "-P", "-m", f"{_PREFIX}{name}"]
