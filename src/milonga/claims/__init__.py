"""Claims of the papers as comparisons, one file for each recipe. `milonga claim NAME` runs one."""

from milonga.claims.base import CLAIMS, Claim, claim

__all__ = ["CLAIMS", "Claim", "claim"]
