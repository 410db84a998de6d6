"""GRPO (arXiv 2402.03300): outcome rewards, normalised within the rollouts of a problem."""
