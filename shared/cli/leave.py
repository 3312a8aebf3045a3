"""`cluster leave`."""

from shared.cli.membership_commands import joining_commands

command = joining_commands("cluster")[1]
