"""Clusters that tell of themselves on the local network (multicast DNS), and who looks for one."""
