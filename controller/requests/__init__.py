"""The requests of a leader: events in, instructions out. Nothing here waits or does I/O."""
