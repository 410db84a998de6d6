"""Requests to an endpoint: many at a time, none for ever.

A request that fails in a way that may pass is made again, after a wait that doubles each time and is shortened by chance; the
chance is keyed by the request, so that the same run waits alike. Everything runs on one loop in a thread of its own: a caller
that is interrupted, or a request that fails for good, ends all others at once.

Invariants: every wait, every answer and the number of attempts are bounded; what fails for good is a `UserError` of one line;
the key is in the requests' headers and nowhere else, and is taken out of all that a server says.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from milonga.config import EndpointSection
from milonga.engine.remote.address import Address
from milonga.errors import UserError
from milonga.randomness import key64
from milonga.text import clip_text, escape_invisible

CONNECT = 10.0
"""Seconds to reach a server."""
LONGEST_WAIT, LONGEST_ASKED = 60.0, 300.0
"""Seconds before a request is made again: by our own count, and where the server names them."""
LARGEST = 16 * 2**20
"""Bytes of an answer that are read."""
SAID = 200
"""Characters of what a server says that are shown."""
PLACEHOLDER = 8
"""Keys with fewer characters are words such as EMPTY, for servers without keys: no secrets, and to be found in any text."""
MOST_TOKENS = 2**40
"""Upper bound of a plausible token count in an answer."""
ENVIRONMENT = "a proxy or a file of certificates that the environment names (HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE, …)"
PASSING = (408, 409, 429)
"""Statuses below 500 that may be others the next time."""
T = TypeVar("T")


class Passing(Exception):
    """A failure that may pass: why, and how many seconds the server wants us to wait."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class Client:
    """One endpoint, asked for one policy."""

    def __init__(self, policy: str, address: Address, key: str | None, section: EndpointSection) -> None:
        self.policy, self.address, self.section = policy, address, section
        self._key = key
        self._http = self._make_http_client()
        self._gate = asyncio.Semaphore(section.concurrency)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"endpoint-{policy}", daemon=True)
        self._thread.start()

    def _make_http_client(self) -> httpx.AsyncClient:
        try:
            return httpx.AsyncClient(
                headers={} if self._key is None else {"Authorization": f"Bearer {self._key}"},
                timeout=httpx.Timeout(self.section.timeout, connect=min(CONNECT, self.section.timeout), pool=None),
                limits=httpx.Limits(max_connections=self.section.concurrency),
                follow_redirects=False,  # the key is for this server alone
                trust_env=not self.address.is_local,
            )
        except (ImportError, ValueError, OSError) as error:
            raise self._make_error(
                f"{ENVIRONMENT} cannot be used: {self.sanitise_text(str(error)) or type(error).__name__}"
            ) from None

    def list_models(self) -> list[str]:
        """The names of the models that the server lists; none where it has no list. A server that is not there is not waited
        for: whoever starts a run wants to know at once."""
        found = self._run(self._request_with_retries("GET", "/models", None, 0, retries=0, missing=(404, 405, 501)))
        rows = found.get("data")
        rows = rows if isinstance(rows, list) else []
        return [row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]

    def complete(self, bodies: Sequence[Mapping[str, Any]], keys: Sequence[int]) -> list[dict[str, Any]]:
        """Request chat completions; return the answers in order. `keys` seed the random part of retry waits."""
        return self._run(self._complete_all(bodies, keys))

    def close(self) -> None:
        if not self._loop.is_closed():
            self._run(self._http.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # where we were interrupted: nobody waits for it any more

    async def _complete_all(self, bodies: Sequence[Mapping[str, Any]], keys: Sequence[int]) -> list[dict[str, Any]]:
        tasks = [asyncio.create_task(self._complete_one(body, key)) for body, key in zip(bodies, keys, strict=True)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _complete_one(self, body: Mapping[str, Any], key: int) -> dict[str, Any]:
        async with self._gate:
            return await self._request_with_retries("POST", "/chat/completions", body, key, self.section.retries)

    async def _request_with_retries(
        self, method: str, path: str, body: Any, key: int, retries: int, missing: Sequence[int] = ()
    ) -> dict[str, Any]:
        for attempt in range(retries + 1):
            try:
                return await self._request_once(method, path, body, missing)
            except Passing as failure:
                if attempt == retries:
                    tries = f" (asked {retries + 1} times)" if retries else ""
                    raise self._make_error(f"{failure}{tries}") from None
                await asyncio.sleep(compute_wait(attempt, key, self.section.backoff, failure.wait))
        raise AssertionError("a range of at least one attempt has no end")

    async def _request_once(self, method: str, path: str, body: Any, missing: Sequence[int]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.section.timeout):  # httpx limits the silence between two bytes, not the whole
                status, headers, text = await self._exchange(method, path, body)
        except TimeoutError:
            raise Passing(f"no answer within {self.section.timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Passing(f"cannot be reached: {self.sanitise_text(str(error)) or type(error).__name__}") from None
        if status in missing:
            return {}
        if status >= 500 or status in PASSING:
            raise Passing(f"status {status}: {self._extract_message(text)}", parse_retry_after(headers))
        if status != 200:
            raise self._make_error(f"status {status}: {self._extract_message(text)}")
        found = self._parse_json(text)
        if found is None:
            raise Passing("an answer that is no JSON")
        if method == "POST" and (why := _find_fault(found)) is not None:
            raise Passing(f"an answer that is no chat completion: {why}")
        return found

    async def _exchange(self, method: str, path: str, body: Any) -> tuple[int, Mapping[str, str], str]:
        """A status, headers, and a text from which the key is gone, should a server repeat it."""
        async with self._http.stream(method, self.address.url + path, json=body) as response:
            parts, size = [], 0
            async for part in response.aiter_bytes():
                size += len(part)
                if size > LARGEST:
                    raise self._make_error(f"an answer of more than {LARGEST // 2**20} MiB")
                parts.append(part)
        text = b"".join(parts).decode("utf-8", "replace")
        return response.status_code, response.headers, self._without_key(text)

    def _without_key(self, text: str) -> str:
        """The text without the key, as it is or as JSON writes it."""
        if self._key is None or len(self._key) < PLACEHOLDER:
            return text
        return text.replace(self._key, "[key]").replace(json.dumps(self._key)[1:-1], "[key]")

    def _parse_json(self, text: str) -> dict[str, Any] | None:
        """An object of JSON; None where it is none. A server may write the key with escapes of its own, such as `\\/`: so it is
        taken out of what they stand for, too."""
        try:
            found = json.loads(self._without_key(json.dumps(json.loads(text), ensure_ascii=False)))
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _extract_message(self, text: str) -> str:
        """The server's own message, in short."""
        found = self._parse_json(text) or {}
        error = found.get("error", found)
        message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        return self.sanitise_text(str(message or text)) or "no message"

    def sanitise_text(self, text: str) -> str:
        """Sanitise a server's text for display: one short line, without the key."""
        return clip_text(escape_invisible(" ".join(self._without_key(text).split())), SAID)

    def _make_error(self, why: str) -> UserError:
        return UserError(f"policy '{self.policy}' behind {self.address.url}: {why}")


def compute_wait(attempt: int, key: int, backoff: float, asked: float | None) -> float:
    """Seconds before the attempt after this one. By our own count half of them are chance, so that requests which failed
    together do not come again together."""
    if asked is not None:
        return min(asked, LONGEST_ASKED)
    whole = min(backoff * 2.0**attempt, LONGEST_WAIT)
    return whole * (0.5 + key64("wait", key, attempt) / 2**64)


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Retry-After, in seconds or as a date; None where there is none that can be read."""
    text = headers.get("retry-after", "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if seconds == seconds else None  # "nan" is no number of seconds


def _find_fault(answer: Mapping[str, Any]) -> str | None:
    """Find what is missing from an answer that should be a chat completion; None if nothing is."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        return "it has no choices"
    message = choices[0].get("message") if isinstance(choices[0], dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("content") or "", str):
        return "its choice has no message"
    usage = answer.get("usage")
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else []
    if not counts or not all(isinstance(count, int) and 0 <= count < MOST_TOKENS for count in counts):
        return "it does not say how many tokens were used"
    return None
