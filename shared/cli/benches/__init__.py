"""What `cluster bench` measures, and how it is shown."""
