"""The state of the cluster as a stream of events, and orders, for the page and for programs."""
