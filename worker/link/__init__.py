"""What agent and engine say to each other over their socket pair."""
