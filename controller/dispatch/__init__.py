"""Brings requests to workers: route, offer, retry, wait for capacity. Pure values."""
