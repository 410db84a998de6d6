"""Tango with a verifier that learns from balanced pairs of right and wrong solutions of the same problem."""
