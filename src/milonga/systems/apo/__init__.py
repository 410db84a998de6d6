"""APO (arXiv 2311.08045): a reward model and a policy in rounds: gold answers must beat the policy's own."""
