"""Servers that know their users, over TLS, and how each role of the tests connects to them."""
