"""Members of a cluster: their keys, certificates and NATS permissions."""
