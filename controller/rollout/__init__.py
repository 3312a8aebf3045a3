"""The leader's roll-out of cluster.yaml to the workers, step by step."""
