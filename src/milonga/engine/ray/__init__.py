"""The engine for many machines: every policy in workers of its own, which Ray places."""

from milonga.engine.ray.environment import prepare

prepare()

from milonga.engine.ray.engine import RayEngine, preview

__all__ = ["RayEngine", "preview"]
