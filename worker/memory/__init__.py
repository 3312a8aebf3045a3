"""Memory limits of a worker, and what it gives up when it exceeds them."""
