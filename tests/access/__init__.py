"""Tests with authentication and TLS (`--secured`): everybody is who they say they are."""
