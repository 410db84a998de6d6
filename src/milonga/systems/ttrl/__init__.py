"""TTRL (arXiv 2504.16084): the majority of a model's own answers is the reward; or GRPO on one example."""
