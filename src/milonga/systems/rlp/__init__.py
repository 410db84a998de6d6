"""RLP (arXiv 2510.01265): a thought is worth what it adds to the log-probability of the next token."""
