"""The run folder and what is written into it."""

from milonga.run.folder import RunFolder, read_config

__all__ = ["RunFolder", "read_config"]
