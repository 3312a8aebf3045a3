"""The requests of a leader as data: state, events, instructions, metrics. No I/O."""
