"""The signature of a run folder: proof that its config was written here, by this user.

Each user has a random key, in a file that nobody else can read. A run folder carries the HMAC-SHA256 of its config under that
key. What only sets how long or on what a run works (`FREE`) is left out: it may be edited.

Invariants: the same key and config give the same bytes; who has not the key can make no signature; without a key that is this
user's alone none is written, and none is valid.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from milonga.auth import compare_secret
from milonga.config import Config
from milonga.runfolder.files import write_atomically

STATE = "MILONGA_STATE"
"""The variable that names the folder of the key, where it is not the usual one."""
SIGNATURE, KEY = "signature", "key"
KEY_BYTES = 32
FREE = frozenset({"turns", "budget", "seed", "device", "threads", "batch", "eval", "probe", "stop_without_signal"})
"""Keys of the config that the signature leaves out: they name no code, no host, no variable and no file."""


class NoKey(Exception):
    """There is no key that is this user's alone; the text says why."""


def write_signature(folder: Path, config: Config) -> None:
    """Write the signature of a config that is about to be written into a folder. Without a key none is written."""
    with suppress(NoKey):
        write_atomically(folder / SIGNATURE, _sign(_load_or_make_key(), config) + "\n")


def explain_missing_signature(folder: Path, config: Config) -> str | None:
    """Explain why a folder, whose config is `config`, has no valid signature of this user; None if it has one."""
    try:
        key = _load_key(find_key_file())
    except NoKey as missing:
        return f"cannot be told from one of somebody else, since {missing}"
    try:
        given = _read_regular_file(folder / SIGNATURE, 2 * hashlib.sha256().digest_size + 1).decode("ascii", "replace").strip()
    except OSError:
        return "was not made here, or before folders had a signature"
    if compare_secret(given, _sign(key, config)):
        return None
    return "has no signature of yours: it was made by somebody else, or its config was changed"


def find_key_file() -> Path:
    """Find the place of this user's key; it need not exist."""
    if named := os.environ.get(STATE):
        return Path(named) / KEY
    if base := os.environ.get("XDG_STATE_HOME"):
        return Path(base) / "milonga" / KEY
    try:
        return Path.home() / ".local" / "state" / "milonga" / KEY
    except RuntimeError:
        raise NoKey(f"you have no home folder for a key: set {STATE} to a folder of yours") from None


def _sign(key: bytes, config: Config) -> str:
    """Sign what a config says, in a form that depends neither on its layout nor on defaults of this version."""
    said = config.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude=set(FREE))
    return hmac.new(key, b"milonga run\n" + json.dumps(said, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _load_or_make_key() -> bytes:
    file = find_key_file()
    try:
        if not file.exists():
            _make_key(file)
    except OSError as error:
        raise NoKey(f"the key '{file}' cannot be made: {error.strerror}") from None
    return _load_key(file)


def _make_key(file: Path) -> None:
    """Make a key. Of several processes that do so at a time one wins, and nobody sees a part of a key."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f"{KEY}-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(secrets.token_bytes(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _load_key(file: Path) -> bytes:
    try:
        key = _read_regular_file(file, KEY_BYTES + 1, private=True)
    except FileNotFoundError:
        raise NoKey(f"you have no key yet ('{file}' is made by your first run)") from None
    except OSError as error:
        raise NoKey(f"the key '{file}' cannot be read: {error.strerror}") from None
    if len(key) != KEY_BYTES:
        raise NoKey(f"'{file}' is not a key: remove it, and the next run makes one")
    return key


def _read_regular_file(file: Path, most: int, private: bool = False) -> bytes:
    """Read up to `most` bytes of a regular file, without waiting; `private`: one that belongs to this user and that nobody
    else can read or change."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a regular file")
        if private and (status.st_uid != os.geteuid() or status.st_mode & 0o077):
            raise OSError(0, "others can read it; chmod 600 makes it yours alone")
        return stream.read(most)
