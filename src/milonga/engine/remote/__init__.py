"""Frozen models behind an OpenAI-compatible endpoint: they can be sampled, and nothing else. Free of torch."""
