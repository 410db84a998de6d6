"""The service: real requests to a real server on loopback. Batched, bounded, and closed to whoever has no business there."""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

import soak_serve
from helpers import PROPERTY
from milonga.auth import bind_socket
from milonga.bounds import CLIENTS, Rates, identify_client
from milonga.connections import BoundedConfig
from milonga.pair import Pair
from milonga.using.gate import Limits
from milonga.using.http import make_app
from milonga.using.service import BusyError, Service
from server_attacks import (
    BODIES,
    HOST,
    MALFORMED,
    UNUSUAL,
    Attack,
    exchange,
    iterate_mutants,
    list_statuses,
    write_head,
    write_post,
)

TOKEN = "a-token-of-some-length"
PROBLEMS = [{"question": f"{n}+4*5%100"} for n in range(12)]
SOLUTION = {"problem": "3+4*5%100", "steps": ["3+4=7", "7*5=36"]}


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Client:
    """Requests to a port of this machine, each on a connection of its own."""

    def __init__(self, port: int, service: Service | None = None, server: uvicorn.Server | None = None) -> None:
        self.port, self.service, self.server = port, service, server

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Reply(answer.status, json.loads(answer.read()), {k.lower(): v for k, v in answer.getheaders()})
        finally:
            connection.close()

    def post(self, path: str, data: Any, **headers: str) -> Reply:
        return self.ask("POST", path, json.dumps(data).encode(), **({"Content_Type": "application/json"} | headers))


class Complaints(logging.Handler):
    """What a server logs, errors of the event loop among it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())


@contextmanager
def listening() -> Iterator[Complaints]:
    complaints = Complaints()
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addHandler(complaints)
    try:
        yield complaints
    finally:
        for logger in loggers:
            logger.removeHandler(complaints)


@contextmanager
def serving(pair: Pair, limits: Limits, token: str | None = None, loopback: bool = True) -> Iterator[Client]:
    """The application in this process, by uvicorn in a thread; at the end it must have stopped."""
    service = Service(pair, limits.waiting)
    listener = bind_socket("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # else the system holds megabytes that nobody reads
    server = uvicorn.Server(BoundedConfig(make_app(service, limits, token, loopback), limits, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield Client(listener.getsockname()[1], service, server)
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive() and not service._worker.is_alive()


@pytest.fixture(scope="module")
def pair(trained: Path) -> Pair:
    return Pair.open(trained)


@pytest.fixture(scope="module")
def client(pair: Pair) -> Iterator[Client]:
    with serving(pair, Limits(rate=10_000)) as made:
        yield made


def test_health_needs_nothing(client: Client) -> None:
    assert client.ask("GET", "/health")[:2] == (200, {"status": "ok", "queued": 0})


def test_solve_gives_the_verifiers_best_of_several(client: Client) -> None:
    done = client.post("/solve", {"problems": [{"question": "3+4*5%100", "id": "mine"}, {"problem": "1+1%100"}], "best_of": 4})
    assert done.status == 200, done.body
    first, second = done.body["results"]
    assert first["id"] == "mine" and "id" not in second and first["rank"] == "verifier"
    assert len(first["candidates"]) == 4 and max(c["weight"] for c in first["candidates"]) > 0
    best = max(first["candidates"], key=lambda c: c["weight"] if c["answer"] is not None else -1)
    assert (first["answer"], first["score"]) == (best["answer"], best["probability"])


def test_verify_gives_a_verdict_for_each_step(client: Client) -> None:
    done = client.post("/verify", {"solutions": [SOLUTION], "checks": 4})
    row = done.body["results"][0]
    assert done.status == 200 and row["checks"] == 4 and row["prediction"] in (-1, 0, 1, None)
    assert row["step_verdicts"] is None or len(row["step_verdicts"]) == 2


def test_answers_depend_on_the_question_and_the_seed_alone(client: Client) -> None:
    def texts(**more: Any) -> list[str]:
        answered = client.post("/solve", {"problems": PROBLEMS[:3], "best_of": 4, "rank": "vote"} | more).body["results"]
        return [str(row["candidates"]) + row["solution"] for row in answered]

    assert texts() == texts() != texts(seed=1)
    alone = client.post("/solve", {"problems": PROBLEMS[1:2], "best_of": 4, "rank": "vote"}).body["results"]
    assert str(alone[0]["candidates"]) + alone[0]["solution"] == texts()[1]


def is_same(one: Any, other: Any, rel: float) -> bool:
    """Whether two answers are the same, but for the last digits of numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=rel)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key], rel) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(is_same(a, b, rel) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def test_requests_that_arrive_together_share_a_batch_and_change_nothing(client: Client) -> None:
    assert client.service is not None
    asked = [{"problems": [problem], "best_of": 3} for problem in PROBLEMS]
    alone = [client.post("/solve", one).body for one in asked]
    before = client.service.batches
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda one: client.post("/solve", one).body, asked))
    # Who else is in a batch changes the order of sums in products, and with it the last digits of a probability: each of a few
    # dozen steps' logits is a sum of less than 10^4 float32 terms, and their errors stay far below one part in 10^3.
    assert is_same(together, alone, 1e-3)
    assert client.service.batches - before < len(asked) / 2


def test_the_same_question_twice_is_worked_on_once_and_answered_twice(client: Client) -> None:
    done = client.post("/solve", {"problems": [PROBLEMS[0], PROBLEMS[0] | {"id": 2}], "best_of": 2})
    first, second = done.body["results"]
    assert second == first | {"id": 2}


@pytest.mark.parametrize(
    ("path", "data", "says"),
    [
        ("/solve", {}, "'problems': Field required"),
        ("/solve", {"problems": []}, "at least 1 item"),
        ("/solve", {"problems": ["x"]}, "'problems.0'"),
        ("/solve", {"problems": [{"question": " "}]}, "at least 1 character"),
        ("/solve", {"problems": PROBLEMS, "bestof": 3}, "'bestof': Extra inputs"),
        ("/solve", {"problems": PROBLEMS, "best_of": "3"}, "valid integer"),
        ("/solve", {"problems": PROBLEMS, "best_of": 0}, "greater than or equal to 1"),
        ("/solve", {"problems": PROBLEMS, "best_of": 1000}, "'best_of' is at most 64, not 1000"),
        ("/solve", {"problems": PROBLEMS, "rank": "luck"}, "'rank'"),
        ("/solve", {"problems": PROBLEMS * 6}, "'items of a request' is at most 64, not 72"),
        ("/solve", {"problems": PROBLEMS, "best_of": 64, "checks": 64}, "'outputs of a request' is at most 2048"),
        ("/solve", {"problems": [{"question": "9" * 20_001}]}, "'characters of an item' is at most 20000"),
        ("/verify", {"solutions": [SOLUTION | {"steps": ["1"] * 257}]}, "'steps of a solution' is at most 256, not 257"),
        ("/verify", {"solutions": [SOLUTION | {"steps": []}]}, "at least 1 item"),
        ("/verify", {"solutions": [SOLUTION], "checks": 65}, "'checks' is at most 64"),
    ],
)
def test_what_cannot_be_answered_is_one_json_line(client: Client, path: str, data: Any, says: str) -> None:
    done = client.post(path, data)
    assert done.status == 422 and list(done.body) == ["error"] and says in done.body["error"], done.body
    assert "Traceback" not in done.body["error"] and len(done.body["error"]) < 300


def test_one_item_that_does_not_fit_spoils_no_other(client: Client) -> None:
    done = client.post("/solve", {"problems": [{"question": "9" * 3000}, PROBLEMS[0]], "best_of": 2})
    assert done.status == 200
    alone = client.post("/solve", {"problems": [{"question": "9" * 3000}], "best_of": 2})
    assert alone.status == 200 and alone.body["results"] == done.body["results"][:1]
    assert done.body["results"][0]["error"] == "longer than the model's context" and done.body["results"][1]["solution"]


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda c: c.ask("POST", "/solve", b"{", Content_Type="application/json"), 400),
        (lambda c: c.ask("POST", "/solve", b"\xff", Content_Type="application/json"), 400),
        (lambda c: c.ask("POST", "/solve", b"{}", Content_Type="text/plain"), 415),
        (lambda c: c.ask("POST", "/solve", b"{}"), 415),
        (lambda c: c.ask("GET", "/solve"), 405),
        (lambda c: c.ask("GET", "/docs"), 404),
        (lambda c: c.ask("POST", "/solve", b"{", Content_Type="application/json", Content_Length=str((1 << 20) + 1)), 413),
        (lambda c: c.ask("GET", "/health", Host="attacker.example"), 421),
        (lambda c: c.ask("GET", "/health", Host="127.0.0.1.attacker.example"), 421),
        (lambda c: c.ask("GET", "/health", Host="LocalHost:1"), 200),
        (lambda c: c.ask("GET", "/health", Host="[::1]:80"), 200),
    ],
)
def test_refusals_have_their_own_codes(client: Client, call: Callable[[Client], Reply], status: int) -> None:
    done = call(client)
    assert done.status == status and (status == 200 or list(done.body) == ["error"])


def test_a_body_that_does_not_announce_its_length_is_counted(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as raw:
        raw.sendall(b"POST /solve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        raw.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        for size in [0x10000] * 16 + [1]:
            raw.sendall(f"{size:x}\r\n".encode() + b" " * size + b"\r\n")
        assert b" 413 " in raw.recv(1000)


def test_a_body_that_never_comes_is_not_waited_for(pair: Pair) -> None:
    with serving(opened(pair), Limits(seconds=0.2)) as client, socket.create_connection(("127.0.0.1", client.port)) as raw:
        raw.settimeout(30)
        head = b"POST /solve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        raw.sendall(head)
        assert b" 408 " in raw.recv(1000)


def opened(pair: Pair) -> Pair:
    """Another pair on the same weights: closing a service closes its pair."""
    again = object.__new__(Pair)
    again.__dict__.update(pair.__dict__)
    return again


def test_a_token_is_asked_for_and_other_hosts_are_then_welcome(pair: Pair) -> None:
    with serving(opened(pair), Limits(), TOKEN, loopback=False) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Bearer "}):
            done = client.post("/verify", {"solutions": [SOLUTION]}, **headers)
            assert done.status == 401 and done.headers["www-authenticate"] == "Bearer" and TOKEN not in str(done.body)
        assert (
            client.post("/verify", {"solutions": [SOLUTION]}, Authorization=f"Bearer {TOKEN}", Host="far.example").status == 200
        )
        assert client.ask("GET", "/health").status == 200 and client.ask("GET", "/openapi.json").status == 401


def test_who_asks_too_often_is_told_when_to_come_back(pair: Pair) -> None:
    with serving(opened(pair), Limits(rate=2)) as client:
        codes = [client.ask("GET", "/openapi.json") for _ in range(3)]
        assert [reply.status for reply in codes] == [200, 200, 429]
        assert 1 <= int(codes[-1].headers["retry-after"]) <= 30
        assert client.ask("GET", "/health").status == 200


class Slow(Pair):
    """A pair that waits for leave before it answers."""

    leave: threading.Event

    def verify(self, *arguments: Any, **options: Any) -> Any:
        self.leave.wait(30)
        return super().verify(*arguments, **options)


def slow(pair: Pair) -> Slow:
    made = object.__new__(Slow)
    made.__dict__.update(pair.__dict__, leave=threading.Event())
    return made


def test_a_full_queue_is_said_and_the_others_are_answered(pair: Pair) -> None:
    held = slow(pair)
    with serving(held, Limits(waiting=1)) as client, ThreadPoolExecutor(2) as pool:
        assert client.service is not None
        first = pool.submit(client.post, "/verify", {"solutions": [SOLUTION]})
        wait_until(lambda: client.service.batches == 1)
        second = pool.submit(client.post, "/verify", {"solutions": [SOLUTION]})
        wait_until(lambda: client.service.queued == 1)
        refused = client.post("/verify", {"solutions": [SOLUTION]})
        assert refused.status == 503 and refused.headers["retry-after"] == "1"
        assert refused.body == {"error": "too many requests are waiting"}
        held.leave.set()
        assert first.result().status == second.result().status == 200


def test_who_goes_away_is_not_worked_for(pair: Pair) -> None:
    held = slow(pair)
    with serving(held, Limits(waiting=1)) as client, ThreadPoolExecutor(1) as pool:
        service = client.service
        assert service is not None
        first = pool.submit(client.post, "/verify", {"solutions": [SOLUTION]})
        wait_until(lambda: service.batches == 1)
        body = json.dumps({"solutions": [SOLUTION]}).encode()
        head = "POST /verify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        with socket.create_connection(("127.0.0.1", client.port)) as raw:
            raw.sendall(head.encode() + f"{len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: service.queued == 1)
        wait_until(lambda: service.queued == 0)
        held.leave.set()
        assert first.result().status == 200
        assert client.post("/verify", {"solutions": [SOLUTION]}).status == 200 and service.batches == 2


def test_what_is_open_to_all_reads_no_body(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.port)) as raw:
        raw.settimeout(30)
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert b" 200 " in raw.recv(1000)


def test_who_waits_when_the_service_stops_is_told_so(pair: Pair) -> None:
    held = slow(pair)
    service = Service(held, 10)
    service.start()
    under_way = service.verify([("1+1%100", ["1+1=2"], None)], 1, 0)
    wait_until(lambda: service.batches == 1)
    waiting, gone = (service.verify([("1+1%100", ["1+1=2"], None)], 1, seed) for seed in (1, 2))
    assert gone.cancel()
    threading.Timer(0.1, held.leave.set).start()
    service.close()
    assert under_way.result()[0]["checks"] == 1
    with pytest.raises(BusyError, match="stopping"):
        waiting.result()
    with pytest.raises(BusyError, match="stopping"):
        service.solve(["1+1%100"], 1, "vote", 1, 0)


def test_a_defect_of_ours_is_one_line_to_others_and_the_service_lives_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = opened(pair)
    with serving(broken, Limits()) as client:
        monkeypatch.setattr(broken, "verify", lambda *a, **k: 1 / 0, raising=False)
        done = client.post("/verify", {"solutions": [SOLUTION]})
        assert (done.status, done.body) == (500, {"error": "internal error"})
        monkeypatch.setattr(broken, "verify", lambda *a, **k: [], raising=False)  # it forgets an item
        assert client.post("/verify", {"solutions": [SOLUTION]}).status == 500
        monkeypatch.undo()
        assert client.post("/verify", {"solutions": [SOLUTION]}).status == 200


def wait_until(so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_command_serves_and_ends_well_on_both_signals(trained: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "MILONGA_TOKEN"}
    command = [sys.executable, "-m", "milonga", "serve", str(trained), "--port", "0"]
    endings = (signal.SIGTERM, signal.SIGINT)
    servers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) for _ in endings]
    try:
        for server, ending in zip(servers, endings, strict=True):
            assert server.stderr is not None
            said = server.stderr.readline()
            assert said.startswith(f"serving {trained} on http://127.0.0.1:"), said
            client = Client(int(said.partition(";")[0].rpartition(":")[2]))
            assert client.ask("GET", "/health").status == 200
            server.send_signal(ending)
            assert server.wait(timeout=30) == 0 and server.stderr.read() == ""
    finally:
        for server in servers:
            server.kill()
            server.wait()


# What clients do to connections.


def name_attack(attack: Attack) -> str:
    return attack.name


@pytest.mark.parametrize("attack", [*MALFORMED, *UNUSUAL, *BODIES], ids=name_attack)
def test_hostile_requests_are_refused_in_one_line_each(client: Client, attack: Attack) -> None:
    with listening() as complaints:
        answer = exchange(client.port, attack.data)
        assert list_statuses(answer) == attack.statuses, answer
        assert attack.statuses[-1] in (200, 405) or re.search(rb'\r\n\r\n\{"error": ?"[^\n]{1,400}"\}$', answer), answer
        assert client.ask("GET", "/health").status == 200
    assert complaints.records == []


@PROPERTY
@given(data=st.binary(max_size=300) | st.integers(0, 1 << 32).map(lambda seed: next(iterate_mutants(random.Random(seed)))))
def test_no_bytes_end_the_server_or_fill_its_log(client: Client, data: bytes) -> None:
    with listening() as complaints:
        statuses = list_statuses(exchange(client.port, data, half=True))
        assert {status // 100 for status in statuses} <= {2, 4}
        assert client.ask("GET", "/health").status == 200
    assert complaints.records == []


@pytest.mark.parametrize("before", [b"", write_head(b"GET", b"/health", HOST)], ids=["at once", "after an answer"])
def test_half_a_head_is_not_waited_for(pair: Pair, before: bytes) -> None:
    with serving(opened(pair), Limits(head_seconds=1)) as client:
        answer = exchange(client.port, before + b"GET /health HTTP/1.1\r\nHost: local")
        assert list_statuses(answer)[-1] == 408 and answer.endswith(b'seconds to arrive"}')
        assert exchange(client.port, b"") == b"", "who says nothing is told nothing"
        wait_until(lambda: client.server is not None and not client.server.server_state.connections)


def test_a_body_that_goes_on_after_its_answer_ends_its_connection(pair: Pair) -> None:
    with serving(opened(pair), Limits(head_seconds=1)) as client, listening() as complaints:
        head = write_head(b"GET", b"/health", HOST, b"Transfer-Encoding: chunked\r\n")
        for more in (b"", b"1\r\na\r\n", b"no chunk\r\n"):
            with socket.create_connection(("127.0.0.1", client.port), timeout=60) as raw:
                raw.sendall(head)
                answer = b""
                while not answer.endswith(b"}"):
                    answer += (piece := raw.recv(1000))
                    assert piece
                assert list_statuses(answer) == (200,)
                raw.sendall(more)
                with suppress(ConnectionError):
                    assert raw.recv(1000) == b""
    assert complaints.records == []


@pytest.mark.parametrize(("limits", "status"), [(Limits(connections=2), 503), (Limits(per_client=2), 429)])
def test_connections_are_counted_in_all_and_for_each_client(pair: Pair, limits: Limits, status: int) -> None:
    with serving(opened(pair), limits) as client, listening() as complaints:
        assert client.server is not None
        held = client.server.server_state.connections
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(socket.create_connection(("127.0.0.1", client.port)))
            wait_until(lambda: len(held) == 2)
            answer = exchange(client.port, b"")
            assert list_statuses(answer) == (status,) and b"Retry-After: 1" in answer
        wait_until(lambda: not held)
        assert client.ask("GET", "/health").status == 200
    assert complaints.records == []


LONG = write_post(b"/verify", json.dumps({"solutions": [SOLUTION | {"id": "x" * 900_000}]}).encode())
"""Its answer, in which the id comes back, is longer than what the system holds of it."""


@contextmanager
def connect_narrow(client: Client) -> Iterator[socket.socket]:
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        raw.settimeout(60)
        raw.connect(("127.0.0.1", client.port))
        yield raw


def test_an_answer_that_nobody_takes_is_thrown_away(pair: Pair) -> None:
    with serving(opened(pair), Limits(seconds=3)) as client, connect_narrow(client) as raw, listening() as complaints:
        assert client.server is not None and client.service is not None
        raw.sendall(LONG)
        wait_until(lambda: client.service.batches == 1)
        wait_until(lambda: not client.server.server_state.connections)
        assert client.ask("GET", "/health").status == 200
    assert complaints.records == []


def test_an_answer_that_is_taken_slowly_is_waited_for(pair: Pair) -> None:
    """Looked at often, and each time it has moved on: the whole takes longer than any part of it may."""
    with serving(opened(pair), Limits(head_seconds=1, seconds=2)) as client, connect_narrow(client) as raw:
        raw.sendall(LONG)
        back = bytearray()
        while piece := raw.recv(1 << 16):
            back += piece
            time.sleep(0.015)
        assert list_statuses(bytes(back)) == (200,) and back.endswith(b"]}") and len(back) > 900_000


def test_clients_of_one_network_are_one() -> None:
    assert identify_client("2001:db8::1") == identify_client("2001:db8::ffff:1") != identify_client("2001:db8:0:1::1")
    assert identify_client("10.0.0.1") == identify_client("::ffff:10.0.0.1") != identify_client("10.0.0.2")
    assert identify_client("fe80::1%eth0") == identify_client("fe80::2") and identify_client("") == ""


def test_the_soak_counts_what_is_right_and_finds_what_is_not(client: Client) -> None:
    requests = soak_serve.write_requests()[5:8]
    load = soak_serve.Load(client.port, soak_serve.learn_answers(client.port, requests), soak_serve.Tally())
    rng = random.Random(0)
    for step in (soak_serve.ask, soak_serve.attack, soak_serve.leave, soak_serve.send_much, soak_serve.ask_together):
        step(load, rng)
    assert load.tally.failures == [] and load.tally.counts["good: 200"] >= 2 and load.tally.counts["left: "] == 1
    soak_serve.ask(replace(load, known=tuple((request, b"another answer") for request, _ in load.known)), rng)
    assert len(load.tally.failures) == 1 and load.tally.failures[0].startswith("good: 200")


def test_the_soak_judges_growth() -> None:
    def judge(memory: float, descriptors: int, threads: int) -> list[str]:
        samples = [soak_serve.Sample(at, 500 + memory * at / 3600, 10, 4, at / 2) for at in range(0, 3601, 10)]
        first, last = samples[0], soak_serve.Sample(3630, 500, descriptors, threads, 1800)
        return soak_serve.judge(samples, first, last)[1]

    assert judge(20, 12, 4) == []
    assert [wrong.split()[0] for wrong in judge(60, 13, 5)] == ["memory", "descriptors:", "threads:"]


# The gate's parts.


@PROPERTY
@given(st.lists(st.floats(0, 10), max_size=60), st.integers(1, 20))
def test_no_client_gets_more_than_its_rate(pauses: list[float], rate: int) -> None:
    rates, now, allowed = Rates(rate), 0.0, []
    for pause in pauses:
        now += pause
        wait = rates.wait("me", now)
        assert 0 <= wait <= 60 / rate + 1e-9
        if wait == 0:
            allowed.append(now)
    # A full bucket, and what flows into it meanwhile.
    assert len(allowed) <= rate + now * rate / 60 + 1e-9
    assert rates.wait("another", now) == 0


def test_clients_are_forgotten_before_they_fill_the_memory() -> None:
    rates = Rates(1)
    for n in range(CLIENTS + 10):
        rates.wait(str(n), 0.0)
    assert len(rates._clients) == CLIENTS
