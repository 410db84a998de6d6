"""The run folder and what is written into it."""
