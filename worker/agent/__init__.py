"""The agent of a node: NATS on one side, engine processes on the other."""
