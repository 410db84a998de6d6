"""Joining a Ray cluster, or starting one on this machine.

Invariants: nothing is reported to anyone, no dashboard is opened, and what Ray and the workers print stays in Ray's own files;
a cluster that was there before is left as it was.
"""

from __future__ import annotations

import logging
import os
import socket

import ray
from ray import exceptions

from milonga.config import PlacementSection
from milonga.engine.ray.environment import TOKEN_FILE
from milonga.errors import UserError
from milonga.interrupts import keep_handlers

LEAST_STORE = 128 * 2**20
PATIENCE = 10.0
"""Seconds to reach a cluster's head: where nobody listens, Ray itself would try for many minutes."""
TOKENS = f"RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or {TOKEN_FILE}"


def connect(placement: PlacementSection, store_bytes: int) -> bool:
    """Join the cluster of the placement or of RAY_ADDRESS, or start one here; True if it was started, and is ours to stop."""
    if ray.is_initialized():
        return False
    address = find_address(placement)
    try:
        if address is not None:
            _check_reachable(address)
            with keep_handlers():  # Ray's answer to SIGTERM would end a run without a checkpoint
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            return False
        size = store_bytes if placement.store_gib is None else int(placement.store_gib * 2**30)
        with keep_handlers():
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=max(LEAST_STORE, size),
            )
    except exceptions.AuthenticationError as error:
        raise UserError(f"the Ray cluster wants its token in {TOKENS}: {first_line(error)}") from None
    except (OSError, ValueError, OverflowError, RuntimeError) as error:
        if address is None:
            raise UserError(f"Ray cannot be started on this machine: {first_line(error)}") from None
        raise UserError(
            f"the Ray cluster at '{address}' cannot be joined: {first_line(error)}; look at the address (placement.address, "
            f"RAY_ADDRESS), at its ports, and at its token ({TOKENS})"
        ) from None
    return True


def _check_reachable(address: str) -> None:
    """Raise an `OSError` if nobody listens at host:port; other addresses (auto, ray://…) are left to Ray."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()


def find_address(placement: PlacementSection) -> str | None:
    """Address of the cluster to join; None if one is to be started."""
    return placement.address or os.environ.get("RAY_ADDRESS")


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
