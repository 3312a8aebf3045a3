"""The tools that every framework's task has: they work in the folder where it runs."""

import subprocess
from pathlib import Path

TASK = "TASK: write the answer into a file, then copy it."


def write_file(path: str, content: str) -> str:
    """Write a file.

    Args:
        path: where.
        content: what.
    """
    Path(path).write_text(content)
    return f"{path} is written"


def run_command(command: str) -> str:
    """Run a command of the shell.

    Args:
        command: what to run.
    """
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30)
    return done.stdout + done.stderr


SCHEMAS = {
    "write_file": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
    "run_command": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}
FUNCTIONS = {"write_file": write_file, "run_command": run_command}
