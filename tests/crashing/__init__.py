"""Models that end the process that runs them."""
