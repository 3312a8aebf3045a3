"""The HTTP edge (its issue is not done yet)."""
