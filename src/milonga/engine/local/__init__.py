"""The engine for one machine."""

from milonga.engine.local.engine import LocalEngine

__all__ = ["LocalEngine"]
