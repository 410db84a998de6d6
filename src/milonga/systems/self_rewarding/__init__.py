"""Self-Rewarding LMs (arXiv 2401.10020): one model answers, grades itself, and prefers its best answer to its worst."""
