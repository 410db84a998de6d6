"""GenRM (arXiv 2408.15240): verification as next-token prediction: the probability of Yes, after written checks."""
