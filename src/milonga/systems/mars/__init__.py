"""MARS (arXiv 2510.04935): a planner and the reader of its documents learn from one final answer."""
