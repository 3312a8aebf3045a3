"""The `cluster` command, and what all four commands share of their command lines."""
