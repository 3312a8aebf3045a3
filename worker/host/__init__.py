"""The machine that a worker runs on: hardware, CPU usage, memory footprint."""
