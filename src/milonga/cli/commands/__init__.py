"""The commands, by their group in `milonga --help`: arguments, help, and one call each. The bodies are in `milonga.cli`."""

# In the order of a day's work, which is that of the help.
from milonga.cli.commands import train, measure, look, use, build  # noqa: I001

__all__ = ["build", "look", "measure", "train", "use"]
