"""Benchmarks of `cluster bench`."""
