"""What several systems share: outcome rewards, imitation, conversations, preference pairs, value heads, votes, debates."""
