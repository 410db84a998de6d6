"""Multi-Agent Evolve (arXiv 2510.23595): proposer, solver and judge from one model, rewarded by its judgements alone."""
