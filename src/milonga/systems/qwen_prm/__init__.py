"""Qwen2.5-Math-PRM (arXiv 2501.07301): completions and a judge must agree about the first error; the rest is dropped."""
