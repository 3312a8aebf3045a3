"""Memory limits of a worker, and what happens when it exceeds them."""
