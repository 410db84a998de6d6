"""SPIN (arXiv 2401.01335): the data's answers must beat those of the model's own last round."""
