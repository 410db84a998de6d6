"""SWEET-RL (arXiv 2503.15478): a critic with privileged information gives credit to single turns of a dialogue."""
