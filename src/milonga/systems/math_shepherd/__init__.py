"""Math-Shepherd (arXiv 2312.08935): step labels from completions of each prefix, learned by a value head."""
