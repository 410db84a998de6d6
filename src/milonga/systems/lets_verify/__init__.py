"""Let's Verify Step by Step (arXiv 2305.20050): a process reward model from step labels, with active selection."""
