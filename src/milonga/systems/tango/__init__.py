"""RL Tango (arXiv 2505.15034): a generator and a generative step verifier learn in turns."""
