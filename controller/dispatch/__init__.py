"""Brings requests to workers: routing, offers, retries, waiting for capacity. Pure values."""
