"""SCoRe (arXiv 2409.12917): two-stage, two-turn RL for self-correction."""
