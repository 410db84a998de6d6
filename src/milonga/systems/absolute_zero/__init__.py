"""Absolute Zero (arXiv 2505.03335): one policy proposes programs and answers questions about them; execution gives labels."""
