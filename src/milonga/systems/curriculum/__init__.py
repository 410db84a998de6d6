"""Curriculum: a proposer, rewarded for problems that are sometimes solved, chooses the difficulty for Tango."""
