"""The state of each request on this worker."""
