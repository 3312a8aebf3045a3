"""What workers there are, and what is known of each."""
