"""The engine for many machines: every policy in workers of its own, which Ray places."""

from milonga.engine.ray.engine import RayEngine

__all__ = ["RayEngine"]
