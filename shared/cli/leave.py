"""`cluster leave`."""

from shared.cli.membership_commands import membership_commands

command = membership_commands("cluster")[1]
