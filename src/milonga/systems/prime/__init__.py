"""PRIME (arXiv 2502.01456): a generator and an implicit process reward model learn from the same rollouts."""
