"""MAPoRL (arXiv 2502.18439): two agents debate over several turns and learn together."""
