"""Token streams to clients: published in order, under a lease, by one attempt at a time."""
