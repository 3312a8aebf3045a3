"""The state machine of requests: events in, instructions out. Nothing here waits or does I/O."""
