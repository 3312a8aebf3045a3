"""The workers and controllers that are alive, and what the leader knows of each."""
