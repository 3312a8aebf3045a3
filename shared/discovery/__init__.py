"""Clusters announce themselves on the local network (multicast DNS), and workers find them."""
