"""Self-Taught Evaluators (arXiv 2408.02666): a judge of pairs learns from its own judgements; the better side is known."""
