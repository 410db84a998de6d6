"""The address of a model behind an endpoint, `openai:URL#model`, and its key.

Invariants: a key comes from the environment alone. What could hold one (a user in a URL, a query, a key where the name of a
variable belongs) is refused, by a message that does not repeat it: the address is written into the run folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from milonga.auth import is_loopback
from milonga.config import ENDPOINT, EndpointSection
from milonga.errors import ConfigError

KEY = "OPENAI_API_KEY"
"""The variable that is looked into where the config names none."""
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
OURS = ("model", "messages", "max_tokens", "temperature", "top_p", "seed", "stop", "n", "stream")
"""What every request says, and `extra` may not say otherwise."""
SECRET = re.compile(r"key|secret|passw|auth|bearer|credential|token$", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    """An endpoint's base, to which `/chat/completions` is added, and the name of the model there."""

    url: str
    model: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(self.host)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is encrypted, or stays on this machine."""
        return self.is_local or urlsplit(self.url).scheme == "https"


def parse_address(policy: str, text: str) -> Address:
    """`openai:https://host/v1#model`."""
    where = f"policies.{policy}.model"
    url, _, model = text.removeprefix(ENDPOINT).partition("#")
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is none
    except ValueError:
        raise ConfigError(f"{where}: the URL of the endpoint cannot be read; write openai:https://host:port/v1#model") from None
    if "@" in parts.netloc or "?" in text:
        raise ConfigError(
            f"{where}: the URL of an endpoint holds no user, password or query, since it is written into the run folder; "
            f"put the key into the environment variable {KEY}, or name another in policies.{policy}.endpoint.api_key_env"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.isprintable() or " " in text:
        raise ConfigError(f"{where}: an endpoint is openai:http://host:port/v1#model, or with https")
    if not model:
        raise ConfigError(f"{where}: which model of the endpoint? write openai:{parts.scheme}://{parts.hostname}/…#model")
    return Address(url.rstrip("/"), model)


def check_section(policy: str, section: EndpointSection) -> None:
    """Refuse endpoint options that must not be written into a run folder, or that would be overruled silently."""
    where = f"policies.{policy}.endpoint"
    if section.api_key_env is not None and not VARIABLE.fullmatch(section.api_key_env):
        raise ConfigError(
            f"{where}.api_key_env is the name of an environment variable, in capitals, such as JUDGE_KEY; never the key itself"
        )
    for name in section.extra:
        if name in OURS:
            raise ConfigError(f"{where}.extra: '{name}' is said by every request; it follows from the rest of the config")
    for name in _iterate_names(section.extra):
        if SECRET.search(name):
            raise ConfigError(f"{where}.extra: '{name}' looks like a secret, and would be written into the run folder")


def _iterate_names(value: object) -> Iterator[str]:
    """The names of all fields, those of fields within fields too."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from _iterate_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _iterate_names(inner)


def find_key(policy: str, address: Address, section: EndpointSection) -> str | None:
    """The key to an endpoint; None where there is none. The usual variable is nobody else's business: unless it was named, its
    key goes to this machine and over https alone."""
    named = section.api_key_env
    if named is None and not address.is_encrypted:
        return None
    key = os.environ.get(named or KEY, "").strip()
    if not key and named is not None:
        raise ConfigError(f"policies.{policy}.endpoint.api_key_env: there is no environment variable {named}")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"the key in {named or KEY} holds characters that no key has")
    return key or None
