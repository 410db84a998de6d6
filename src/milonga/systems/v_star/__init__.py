"""V-STaR (arXiv 2402.06457): own right solutions train the generator; right against wrong ones train a DPO verifier."""
