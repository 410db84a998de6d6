"""The HTTP service: `/solve`, `/verify` and `/health` around a `Service`, behind a `Gate`. FastAPI reads and checks requests.

Invariant: every answer is JSON, and no answer shows where in our code something went wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException

from milonga.bounds import RETRY
from milonga.errors import UserError
from milonga.using.answers import Rank
from milonga.using.gate import Gate, Limits
from milonga.using.items import Item, SolutionItem
from milonga.using.service import BusyError, Row, Service

GONE = 499
"""Status code that proxies log for a client that closed its connection. Nobody receives it."""
LONGEST = 300
"""Most characters of an error."""


class Asked(BaseModel):
    """Fields that both kinds of requests have. Unknown keys are errors: a misspelt one would be ignored silently."""

    model_config = ConfigDict(extra="forbid", strict=True)

    checks: int = Field(1, ge=1)
    """Verifications of each solution."""
    seed: int = Field(0, ge=-(1 << 63), lt=1 << 63)
    """The same request with the same seed has the same answer."""


class SolveRequest(Asked):
    problems: list[Item] = Field(min_length=1)
    best_of: int = Field(8, ge=1)
    rank: Rank | None = None
    """By default the verifier, where there is one, and a vote otherwise."""


class VerifyRequest(Asked):
    solutions: list[SolutionItem] = Field(min_length=1)


class Rows(BaseModel):
    results: list[dict[str, Any]]
    """One result per item, in order; each has the item's `id`, if it had one."""


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    queued: int


def make_app(service: Service, limits: Limits, token: str | None, loopback: bool) -> Gate:
    """Make the application; starting and stopping it starts and stops the service."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.close)

    # The usual documentation pages load files from the internet; the schema itself is at /openapi.json.
    app = FastAPI(title="milonga", lifespan=life, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(Exception, _handle_bug)
    app.add_exception_handler(StarletteHTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_request)
    app.add_exception_handler(UserError, _handle_user_error)

    @app.get("/health")
    async def health() -> Health:
        return Health(queued=service.queued)

    @app.post("/solve")
    async def solve(asked: SolveRequest, request: Request) -> Rows:
        rank: Rank = asked.rank or ("verifier" if service.pair.judges else "vote")
        if not service.pair.solves or (rank != "vote" and not service.pair.judges):
            raise HTTPException(422, f"this pair cannot solve by rank '{rank}': it has {' and '.join(service.pair.agents)}")
        _check_limit("best_of", asked.best_of, limits.best_of)
        _check_limit("checks", asked.checks, limits.checks)
        _check_limits(asked.problems, asked.best_of * (1 if rank == "vote" else 1 + asked.checks), limits)
        questions = [item.question for item in asked.problems]
        done = service.solve(questions, asked.best_of, rank, asked.checks, asked.seed)
        return _attach_ids(asked.problems, await _wait_for_rows(done, request))

    @app.post("/verify")
    async def verify(asked: VerifyRequest, request: Request) -> Rows:
        if not service.pair.judges:
            raise HTTPException(422, "this pair has no verifier")
        _check_limit("checks", asked.checks, limits.checks)
        _check_limits(asked.solutions, asked.checks, limits)
        solutions = [(s.question, s.steps, None if s.answer is None else str(s.answer)) for s in asked.solutions]
        done = service.verify(solutions, asked.checks, asked.seed)
        return _attach_ids(asked.solutions, await _wait_for_rows(done, request))

    return Gate(app, limits, token, loopback)


async def _wait_for_rows(done: Future[list[Row]], request: Request) -> list[Row]:
    """Wait for the rows of a job. If the client disconnects before the job begins, the job is cancelled."""
    rows, gone = asyncio.wrap_future(done), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        either: set[asyncio.Future[Any]] = {rows, gone}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not rows.done():
            raise HTTPException(GONE, "the client has gone")
        return rows.result()
    finally:
        gone.cancel()
        rows.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _attach_ids(items: list[Any], rows: list[dict[str, Any]]) -> Rows:
    return Rows(results=[({} if i.id is None else {"id": i.id}) | row for i, row in zip(items, rows, strict=True)])


def _check_limit(name: str, value: int, most: int) -> None:
    if value > most:
        raise HTTPException(422, f"'{name}' is at most {most}, not {value}")


def _check_limits(items: list[Any], each: int, limits: Limits) -> None:
    """Refuse a request that exceeds the limits, before anything is tokenised."""
    _check_limit("items of a request", len(items), limits.items)
    _check_limit("outputs of a request", len(items) * each, limits.outputs)
    for item in items:
        steps = item.steps if isinstance(item, SolutionItem) else []
        _check_limit("steps of a solution", len(steps), limits.steps)
        answer = str(getattr(item, "answer", None) or "")
        _check_limit("characters of an item", len(item.question) + len(answer) + sum(map(len, steps)), limits.text)


def _make_error_response(status: int, why: str, headers: dict[str, str] | None = None) -> JSONResponse:
    # What a client sent may be quoted here, and be long.
    return JSONResponse({"error": why if len(why) <= LONGEST else f"{why[:LONGEST]}…"}, status, headers)


async def _handle_bug(request: Request, error: Exception) -> JSONResponse:
    """Answer an internal error (a bug). The server logs it; the client is told only that there is one."""
    return _make_error_response(500, "internal error")


async def _handle_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return _make_error_response(error.status_code, str(error.detail), dict(error.headers or {}))


async def _handle_user_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error that the client can fix: 503 to retry later, 422 to change the request."""
    return (
        _make_error_response(503, str(error), RETRY) if isinstance(error, BusyError) else _make_error_response(422, str(error))
    )


async def _handle_invalid_request(request: Request, error: Exception) -> JSONResponse:
    """Answer the first validation error of a request, without echoing its content."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _make_error_response(422, "the body is not JSON")
    place = ".".join(str(part) for part in first["loc"][1:])
    return _make_error_response(422, f"'{place}': {first['msg']}" if place else str(first["msg"]))
