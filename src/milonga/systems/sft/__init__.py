"""SFT: both agents imitate worked examples: the warm start of other recipes."""
