"""Agentic Self-Learning (arXiv 2510.14253): proposer, generative reward model and solver from one model, trained in phases."""
