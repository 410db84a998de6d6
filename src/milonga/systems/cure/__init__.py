"""CURE (arXiv 2506.03136): a coder and a unit tester in one model, both rewarded by execution."""
