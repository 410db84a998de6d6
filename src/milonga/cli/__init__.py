"""The command line."""

from milonga.cli.app import main

__all__ = ["main"]
