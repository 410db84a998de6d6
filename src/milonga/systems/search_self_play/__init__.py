"""Search Self-Play (arXiv 2510.18821): a proposer searches for questions, a solver for their answers."""
