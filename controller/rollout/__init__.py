"""Rolling cluster.yaml out to the workers: done by the controller that leads."""
