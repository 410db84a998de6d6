"""What our servers share: tokens, names of this machine, sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.auth import bind_socket, find_token, is_local, is_loopback
from milonga.errors import ConfigError

TOKEN = "a-token-of-this-test-alone"


def test_only_loopback_goes_without_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, file: Path | None, variable: str) -> str | None:
        monkeypatch.setenv("MILONGA_TOKEN", variable)
        return find_token(host, file)

    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    monkeypatch.delenv("MILONGA_TOKEN", raising=False)
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert find_token(host, None) is None
    assert found("0.0.0.0", file, "") == found("::", None, TOKEN) == TOKEN
    assert found("::1", file, "another-token-from-the-environment") == TOKEN
    (tmp_path / "empty").write_text(" \n")
    for host, path, variable, says in (
        ("0.0.0.0", None, "", "set a token"),
        ("192.168.1.2", None, "", "set a token"),
        ("example.org", None, "", "set a token"),
        ("127.0.0.1", tmp_path / "nothing", "", "cannot be read"),
        ("127.0.0.1", tmp_path / "empty", "", "is empty"),
        ("127.0.0.1", None, "short", "at least 16 characters"),
        ("127.0.0.1", None, "with a space and long enough", "no spaces"),
    ):
        with pytest.raises(ConfigError, match=says):
            found(host, path, variable)


@pytest.mark.parametrize("header", ["localhost", "127.0.0.1:80", "127.8.9.1", "[::1]", "[::1]:8000", "LOCALHOST"])
def test_host_headers_of_this_machine(header: str) -> None:
    assert is_local(header)


@pytest.mark.parametrize(
    "header", ["", "[::1", "::1", "localhost.evil.org", "evil.org:127.0.0.1", "[evil.org]:80", "0.0.0.0", "127.0.0.1.evil.org"]
)
def test_host_headers_of_others(header: str) -> None:
    assert not is_local(header)


@PROPERTY
@given(st.text(max_size=30))
def test_any_host_header_is_judged(header: str) -> None:
    if is_local(header):
        assert "localhost" in header.lower() or "127." in header or "::" in header or "0:" in header
    assert is_loopback(header) in (True, False)


def test_a_port_that_is_taken_is_named() -> None:
    with bind_socket("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match=r"cannot listen on .* in use"):
        bind_socket("127.0.0.1", taken.getsockname()[1])
