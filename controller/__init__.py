"""The control plane: takes requests, chooses workers, and answers for every request it took."""
