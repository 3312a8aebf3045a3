"""The control plane: accepts requests, routes them to workers, and sees each through to its end."""
