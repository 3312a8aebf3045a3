"""The state machine of requests: events in, instructions out. It does no I/O and does not wait."""
