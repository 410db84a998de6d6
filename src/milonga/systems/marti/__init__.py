"""MARTI (OpenReview E7jZqo0A50): chains with a critic, debates and mixtures of agents, each rewarded for its own turns."""
