"""The agent of a worker: NATS on one side, engine processes on the other."""
