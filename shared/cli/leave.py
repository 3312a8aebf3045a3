"""`cluster leave`."""

from shared.cli.joining import joining_commands

command = joining_commands("cluster")[1]
