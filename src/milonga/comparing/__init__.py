"""Fair comparisons of recipes: same start, same problems, paired seeds, matched turns or compute, intervals.

Importing this imports no torch.
"""

from milonga.comparing.comparison import compare

__all__ = ["compare"]
