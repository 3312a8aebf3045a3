"""Speed, as ratios: each benchmark runs the cluster beside its limit or a peer, in one run."""
