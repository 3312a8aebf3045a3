"""Leader election, the leader itself, and the transfer of its requests."""
