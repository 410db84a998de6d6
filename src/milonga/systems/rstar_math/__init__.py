"""rStar-Math (arXiv 2501.04519): tree search, and preferences among sibling steps, in rounds."""
