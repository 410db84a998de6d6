"""Making the engine that a config asks for: in this process or in Ray's workers, with endpoints beside it where models are
behind them. Torch, Ray and httpx are imported only when an engine is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from milonga.config import Config, PolicySection, VllmSection, is_embedded, is_endpoint
from milonga.engine.base import Engine
from milonga.text import escape_invisible


def make_engine(policies: Mapping[str, PolicySection], config: Config, say: Callable[[str], None] | None = None) -> Engine:
    """Make the engine of a config for these policies, and load their models. `say` is told before what may take long."""
    import torch

    from milonga.engine.local.models import check_model

    remote = {name: section for name, section in policies.items() if is_endpoint(section.model)}
    own = {name: section for name, section in policies.items() if name not in remote}
    for section in own.values():
        check_model(section.model)
    large = dict.fromkeys(section.model for section in own.values() if not is_embedded(section.model))
    if say is not None and large:
        say(escape_invisible(f"loading {', '.join(large)}"))
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return _add_endpoints(_make_ray_engine(own, config) if config.engine == "ray" else _make_local_engine(own, config), remote)


def _make_local_engine(policies: Mapping[str, PolicySection], config: Config) -> Engine:
    """Make an engine with the policies in this process."""
    from milonga.engine.local import LocalEngine

    sampling = config.sampling
    return LocalEngine(policies, config.device, sampling.rows, get_vllm_section(config), sampling.history_gib)


def _make_ray_engine(policies: Mapping[str, PolicySection], config: Config) -> Engine:
    """Make an engine with the policies in workers that Ray places."""
    from milonga.engine.ray import RayEngine

    vllm = get_vllm_section(config)
    return RayEngine(policies, config.placement, config.device, config.sampling.rows, vllm, config.threads, config.staleness)


def get_vllm_section(config: Config) -> VllmSection | None:
    """The settings of vLLM; None if it does not sample."""
    sampling = config.sampling
    return (sampling.vllm or VllmSection()) if sampling.sampler == "vllm" else None


def _add_endpoints(engine: Engine, policies: Mapping[str, PolicySection]) -> Engine:
    """Wrap an engine to add the policies that are behind endpoints."""
    if not policies:
        return engine
    from milonga.engine.remote.engine import WithEndpoints  # needs httpx, which is optional

    return WithEndpoints(engine, policies)
