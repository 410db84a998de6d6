"""Self-play SWE-RL (arXiv 2512.18552): one model injects bugs into repositories and repairs them."""
