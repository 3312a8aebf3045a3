"""Leader election, and what a controller does while it leads."""
