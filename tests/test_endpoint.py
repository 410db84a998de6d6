"""Models behind an endpoint: real requests to real servers on loopback, good ones and bad ones, and runs with them."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import milonga as package
from cases import TINY
from endpoint_helpers import NAME, Reply, Server, embedded, said, serving
from engine_helpers import chat_folder
from helpers import PROPERTY, Command
from milonga.api import make_engine, plan_run
from milonga.config import EndpointSection, PolicySection, merge, to_toml
from milonga.context import Context, RunContext
from milonga.engine import Decoding, Engine, Ledger, Request
from milonga.engine.base import Progress
from milonga.engine.local import LocalEngine
from milonga.engine.remote import codec
from milonga.engine.remote.address import find_key, parse_address
from milonga.engine.remote.client import LONGEST_ASKED, LONGEST_WAIT, compute_wait, parse_retry_after
from milonga.engine.remote.engine import WithEndpoints
from milonga.errors import ConfigError, UserError
from milonga.objectives import make_objective
from milonga.pair import Pair
from milonga.recipe import ALLOWED
from milonga.resolve import resolve
from milonga.runfolder.files import JsonLines
from milonga.runfolder.rollouts import read_rollouts
from milonga.schedule import Action
from milonga.systems.index import RECIPES
from milonga.types import Part, Rollouts, TrainBatch
from phrases import phrase_model, write_questions
from short import SHORT, short_loop

torch.set_num_threads(1)
KEY = "sk-very-secret-0123456789"
PROMPT = (Part("Is it so? "), Part("<|im_end|> 7*8=54 é", foreign=True))
FAST = EndpointSection(backoff=0.01)
TERSE: dict[str, Any] = {"dialect": "terse", "keep": {"checkpoint_every": 1, "checkpoints": 10, "rollouts_every": 1}}


def behind(server: Server, section: EndpointSection = FAST) -> Engine:
    """An engine with one policy, `judge`, behind a server."""
    return WithEndpoints(LocalEngine({}, "cpu"), {"judge": PolicySection(model=server.model, endpoint=section)})


def ask(engine: Engine, count: int = 1, decoding: Decoding | None = None) -> list[Any]:
    context = engine.encode("judge", PROMPT)
    return engine.sample("judge", [Request(context, key) for key in range(count)], decoding or Decoding(9))


def refusal(server: Server, section: EndpointSection = FAST, decoding: Decoding | None = None) -> str:
    """What is said, in one line, where a server cannot be used."""
    engine = behind(server, section)
    with pytest.raises(UserError) as caught:
        ask(engine, decoding=decoding)
    engine.close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_request_says_all_that_the_config_says() -> None:
    with serving(lambda body, number: said("yes", tokens=(11, 3))) as server:
        engine = behind(server, EndpointSection(extra={"top_k": -1}, parameters=1e6))
        context = engine.encode("judge", PROMPT)
        (found,) = engine.sample("judge", [Request(context, 2**40 + 5)], Decoding(9, 0.7))
        engine.sample("judge", [Request(context, 1)], Decoding(9, greedy=True))
        engine.close()
    text = "Is it so? <|im_end|> 7*8=54 é"
    assert server.bodies[0] == {
        "model": NAME,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 1.0,
        "seed": (2**40 + 5) % 2**31,
        "top_k": -1,
    }
    assert server.bodies[1]["temperature"] == 0
    assert (found.text, found.finish, found.ids.tolist()) == ("yes", "eos", [*b"yes", codec.END])
    assert found.ends.tolist() == [1, 2, 3, 3] and not found.logprobs.any()
    usage = engine.ledger.policies["judge"]
    assert (usage.prefill, usage.decode, usage.flops) == (22, 6, 2e6 * 28)


def test_unknown_flops_are_no_zero() -> None:
    ledger = Ledger()
    with serving(lambda body, number: said("yes")) as server:
        engine = behind(server)
        ask(engine)
        engine.close()
        ledger.from_json(json.loads(json.dumps(engine.ledger.to_json())))  # as a checkpoint keeps it
    assert ledger.total("tokens") == 15 and np.isnan(ledger.total("flops"))


@pytest.mark.parametrize(
    ("finish", "expected"), [("stop", "eos"), ("length", "length"), ("content_filter", "length"), (None, "length")]
)
def test_only_what_ended_by_itself_ended(finish: str, expected: str) -> None:
    with serving(lambda body, number: said("half", finish)) as server:
        engine = behind(server)
        (found,) = ask(engine)
        engine.close()
    assert found.finish == expected and (codec.END in found.ids) == (expected == "eos")


def test_stop_strings_are_cut_here_and_belong_to_the_output() -> None:
    with serving(lambda body, number: said("<v>yes</v> and more</v>")) as server:
        engine = behind(server)
        (found,) = ask(engine, decoding=Decoding(9, stop=("</x>", "</v>")))
        engine.close()
    assert (found.text, found.finish) == ("<v>yes</v>", "stop") and "stop" not in server.bodies[0]


def test_a_server_that_stops_must_say_at_what() -> None:
    section, decoding = EndpointSection(stop="server", backoff=0.01), Decoding(9, stop=("</v>",))
    replies = [said("<v>yes", stop_reason="</v>"), said("<v>no", matched_stop="</v>"), said("<v>ended", stop_reason=None)]
    with serving(lambda body, number: replies[number]) as server:
        engine = behind(server, section)
        found = [ask(engine, decoding=decoding)[0] for _ in replies]
        engine.close()
    assert [(f.text, f.finish) for f in found] == [("<v>yes</v>", "stop"), ("<v>no</v>", "stop"), ("<v>ended", "eos")]
    assert server.bodies[0]["stop"] == ["</v>"]
    with serving(lambda body, number: said("<v>yes")) as server:
        assert "set policies.judge.endpoint.stop to 'here'" in refusal(server, section, decoding)


@PROPERTY
@given(st.lists(st.tuples(st.text(), st.text(), st.booleans()), min_size=1, max_size=4))
def test_a_conversation_comes_back_to_the_byte(turns: list[tuple[str, str, bool]]) -> None:
    ids, expected = np.zeros(0, dtype=np.int64), []
    for question, answer, ended in turns:
        said_next = (Part(question, foreign=True),)
        ids = np.concatenate([ids, codec.encode_next_turn(said_next, int(ids[-1])) if len(ids) else codec.encode(said_next)])
        expected.append({"role": "user", "content": question})
        assert codec.decode_messages(ids) == expected
        found = codec.encode_completion(answer, "eos" if ended else "length")
        assert found.text == answer and len(found.ends) == len(found.ids) == len(found.logprobs)
        if answer:
            assert found.ends[-1] == len(answer) and (np.diff(found.ends) >= 0).all()
            assert all(len(bytes(found.ids[: at + 1].tolist()).decode("utf-8", "ignore")) == found.ends[at]
                       for at in range(len(answer.encode())))  # fmt: skip
        ids = np.concatenate([ids, found.ids])
        assert not len(found.ids) or codec.decode_messages(ids) is None, "nobody goes on from the middle of an output"
        expected.append({"role": "assistant", "content": answer})


def test_half_a_character_in_an_answer_is_no_crash() -> None:
    with serving(lambda body, number: said("a\ud800b")) as server:
        engine = behind(server)
        (found,) = ask(engine)
        engine.close()
    assert found.text == "a?b" and found.ends.tolist() == [1, 2, 3, 3]


PASSING = {
    "busy": Reply({"error": {"message": "slow down"}}, 429),
    "busy for a while": Reply({"error": {"message": "slow down"}}, 429, {"Retry-After": "0.02"}),
    "conflict": Reply({"error": "again"}, 409),
    "broken": Reply(b"<html>bad gateway</html>", 502),
    "garbage": Reply(b"\xff\xfe{not json"),
    "a list": Reply([1, 2]),
    "no choices": Reply({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}),
    "no message": Reply({"choices": [{}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}),
    "content that is no text": Reply({"choices": [{"message": {"content": 7}}], "usage": {}}),
    "no usage": Reply({"choices": [{"message": {"content": "yes"}}]}),
    "more tokens than there are": said("yes", tokens=(10**400, 1)),
    "cut off": Reply(b"{", headers={"Content-Length": "999", "Connection": "close"}),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_is_asked_again(name: str) -> None:
    with serving(lambda body, number: PASSING[name] if number < 2 else said("yes")) as server:
        engine = behind(server, EndpointSection(backoff=0.01, timeout=2.0))
        assert ask(engine)[0].text == "yes"
        engine.close()
    assert len(server.bodies) == 3 and server.bodies[0] == server.bodies[2], "the same request, with the same seed"


def test_in_the_end_it_stops_with_what_the_server_said() -> None:
    with serving(lambda body, number: Reply({"error": {"message": "no\nroom " + "x" * 999}}, 503)) as server:
        text = refusal(server, EndpointSection(backoff=0.01, retries=2))
    assert text.startswith(f"policy 'judge' behind {server.url}: status 503: no room xxx") and "asked 3 times" in text
    assert len(text) < 400 and len(server.bodies) == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("garbage", "no JSON"),
        ("no choices", "it has no choices"),
        ("no usage", "how many tokens"),
        ("cut off", "cannot be reached"),
    ],
)
def test_an_answer_that_stays_unreadable_is_said(name: str, words: str) -> None:
    with serving(lambda body, number: PASSING[name]) as server:
        assert words in refusal(server, EndpointSection(backoff=0.01, retries=1))


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422])
def test_what_will_not_pass_is_not_asked_again(status: int) -> None:
    reply = Reply({"error": {"message": "this model is not for you"}}, status, {"Location": "http://127.0.0.1:9/v1"})
    with serving(lambda body, number: reply) as server:
        assert f"status {status}: this model is not for you" in refusal(server)
    assert len(server.bodies) == 1


def test_a_server_that_says_nothing_or_drips_is_left() -> None:
    with serving(lambda body, number: Reply({"choices": []}, drip=0.05)) as server:
        began = time.monotonic()
        assert "no answer within 0.2 s" in refusal(server, EndpointSection(timeout=0.2, retries=1, backoff=0.01))
        assert time.monotonic() - began < 3 and len(server.bodies) == 2


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milonga.engine.remote.client.LARGEST", 2**20)
    with serving(lambda body, number: said("x" * 2**21)) as server:
        assert "more than 1 MiB" in refusal(server)


def test_one_failure_ends_all_requests_at_once() -> None:
    released = threading.Event()

    def answer(body: dict[str, Any], number: int) -> Reply:
        if number == 3:
            return Reply({"error": "no"}, 400)
        released.wait(20)
        return said("late")

    with serving(answer) as server:
        engine, began = behind(server), time.monotonic()
        with pytest.raises(UserError, match="status 400"):
            ask(engine, 8)
        engine.close()
        assert time.monotonic() - began < 10
        released.set()


def test_no_more_requests_at_a_time_than_allowed() -> None:
    def answer(body: dict[str, Any], number: int) -> Reply:
        time.sleep(0.02)
        return said(str(body["seed"]))

    with serving(answer) as server:
        engine = behind(server, EndpointSection(concurrency=3))
        assert [found.text for found in ask(engine, 12)] == [str(seed) for seed in range(12)], "in the order of the requests"
        engine.close()
    assert 1 < server.busiest <= 3


def test_waits_double_are_keyed_and_have_an_end() -> None:
    waits = [compute_wait(attempt, 7, 1.0, None) for attempt in range(20)]
    assert (
        waits
        == [compute_wait(attempt, 7, 1.0, None) for attempt in range(20)]
        != [compute_wait(n, 8, 1.0, None) for n in range(20)]
    )
    for attempt, wait in enumerate(waits):
        whole = min(2.0**attempt, LONGEST_WAIT)
        assert whole / 2 <= wait <= whole
    assert compute_wait(0, 7, 1.0, 2.5) == 2.5 and compute_wait(0, 7, 1.0, 1e9) == LONGEST_ASKED
    assert (
        parse_retry_after({"retry-after": "3"}) == 3
        and parse_retry_after({}) is None
        and parse_retry_after({"retry-after": "soon"}) is None
    )
    assert (
        parse_retry_after({"retry-after": "nan"}) is None
        and parse_retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    )


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with serving(lambda body, number: said("yes")) as server:
        pass
    began = time.monotonic()
    with pytest.raises(UserError, match="cannot be reached"):
        behind(server, EndpointSection())
    assert time.monotonic() - began < 5


def test_a_model_that_the_server_does_not_have_is_named_before_anything_runs() -> None:
    with (
        serving(lambda body, number: said("yes"), Reply({"data": [{"id": "tinny"}, {"id": "large"}]})) as server,
        pytest.raises(ConfigError, match="has no model 'tiny': did you mean 'tinny'"),
    ):
        behind(server)
    hostile = [{"id": "a\x1b[2J\nb"}, *({"id": f"zz{i}" * 50} for i in range(999))]
    with serving(lambda body, number: said("yes"), Reply({"data": hostile})) as server, pytest.raises(ConfigError) as refused:
        behind(server)
    assert len(str(refused.value)) < 400 and str(refused.value).isprintable()
    with serving(lambda body, number: said("yes"), Reply("no such page", 404)) as server:
        behind(server).close()  # not every server has a list
    with serving(lambda body, number: said("yes"), Reply({"error": {"message": "who?"}}, 401)) as server:
        with pytest.raises(UserError, match="status 401: who"):
            behind(server)
        assert server.bodies == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ALL_PROXY", "socks5://me:p4ssw0rd@127.0.0.1:1"), ("HTTPS_PROXY", "ftp://x"), ("SSL_CERT_FILE", "/nowhere/at/all")],
)
def test_what_the_environment_names_and_cannot_be_used_is_one_line(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=r"that the environment names .* cannot be used: ") as refused:
        behind(Server("https://judge.example/v1"))
    assert "p4ssw0rd" not in str(refused.value) and "\n" not in str(refused.value)


def test_it_can_be_sampled_and_nothing_else(tmp_path: Path) -> None:
    with serving(lambda body, number: said("yes")) as server:
        engine = behind(server)
        train_batch = TrainBatch("judge", make_objective("cross_entropy").loss, Rollouts([]))
        for work in (
            lambda: engine.score("judge", Rollouts([])),
            lambda: engine.values("judge", Rollouts([])),
            lambda: engine.learn(train_batch),
            lambda: engine.publish("judge"),
            lambda: engine.snapshot("judge", "kept"),
            lambda: engine.copy("judge", "judge"),
            lambda: engine.export("judge", tmp_path / "model"),
            lambda: engine.sample("judge", [], Decoding(1), tag="ema"),
            lambda: engine.sample("judge", [Request(codec.encode_completion("half", "length").ids, 1)], Decoding(1)),
        ):
            with pytest.raises(UserError, match="policy 'judge' lives behind an endpoint"):
                work()
        assert not engine.has_weights("judge") and engine.version("judge") == 0 and engine.context_limit("judge") > 10**9
        engine.close()
        engine.close()  # as often as anyone likes


def test_what_computes_here_tells_how_far_it_is_beside_an_endpoint(tiny: Server, tmp_path: Path) -> None:
    told = list[Progress]()
    policies = {"verifier": {"model": tiny.model}}
    with short_loop("frozen", tmp_path / "run", {**TERSE, "policies": policies}) as loop:
        loop.engine.watch = told.append
        loop.run_turn()
    assert {(one.policy, one.work) for one in told} == {("generator", "sample"), ("generator", "learn")}


def test_a_prompt_that_is_too_long_is_left_out_and_counted() -> None:
    with serving(lambda body, number: said("yes")) as server:
        own = {"model": server.model, "endpoint": {"context_bytes": 20}}
        plan = resolve([TINY, {"recipe": "frozen", "dialect": "terse", "policies": {"verifier": own}}])
        engine = make_engine(plan)
        ctx = Context(RunContext(engine, plan.task, plan.roles, plan.agents, plan.config.sampling, 0, 2), 1, "generator")
        solutions = ctx.ask("generator", ctx.problems())
        with pytest.raises(UserError, match="fits into the 20 tokens"):
            ctx.ask("verifier", solutions)
        assert ctx.dropped["verifier: prompt longer than the model's context"] == len(solutions)
        engine.close()


BAD_ADDRESSES = {
    "a user": f"openai:http://me:{KEY}@127.0.0.1/v1#m",
    "a query": f"openai:http://127.0.0.1/v1?api_key={KEY}#m",
    "a query behind the model": f"openai:http://127.0.0.1/v1#m?api_key={KEY}",
    "no model": "openai:http://127.0.0.1:8000/v1",
    "no host": "openai:http:///v1#m",
    "no scheme": "openai:127.0.0.1:8000/v1#m",
    "another scheme": "openai:file:///etc/passwd#m",
    "no port": "openai:http://127.0.0.1:many/v1#m",
    "no address": "openai:http://[::1/v1#m",
    "a space": "openai:http://127.0.0.1/v1#a model",
}


@pytest.mark.parametrize("name", BAD_ADDRESSES)
def test_a_bad_address_is_refused_and_not_repeated(name: str, milonga: Command, tmp_path: Path) -> None:
    done = milonga("run", "frozen", "--verifier", BAD_ADDRESSES[name], "--out", tmp_path / "run")
    assert done.code == 2 and "policies.verifier.model" in done.err and "Traceback" not in done.err
    assert KEY not in done.out + done.err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (f"policies.verifier.endpoint.api_key_env={KEY}", "never the key itself"),
        (f"policies.verifier.endpoint.api_key={KEY}", "did you mean 'api_key_env'"),
        (f"policies.verifier.endpoint.extra.api_key={KEY}", "looks like a secret"),
        (f"policies.verifier.endpoint.extra.provider.api_key={KEY}", "looks like a secret"),
        (f"policies.verifier.endpoint.extra.access_token={KEY}", "looks like a secret"),
        ("policies.verifier.endpoint.extra.seed=3", "'seed' is said by every request"),
        ("policies.generator.endpoint.retries=3", "openai:URL#model"),
        ("policies.verifier.ema=0.9", "it can only be sampled; lora, adapter and ema"),
        ("budget.flops=1e9", "use budget.tokens"),
    ],
)
def test_a_wrong_setting_is_one_line_without_the_key(setting: str, words: str, milonga: Command) -> None:
    done = milonga("run", "frozen", "--dry-run", "--verifier", "openai:http://127.0.0.1:8000/v1#m", "--set", setting)
    assert done.code == 2 and words in " ".join(done.err.split()) and KEY not in done.out + done.err


FROZEN_VERIFIER = {"verifier": {"n_verifier": 0, "warmup": 0}}
ENDPOINTS: dict[str, dict[str, dict[str, Any]]] = {
    "aprm": {"generator": {"oracle": "steps"}},
    "asl": {"verifier": {"grm": "frozen", "formats": 0}},
    "cure": {"tester": {"train_tester": False}},
    "curriculum": FROZEN_VERIFIER,
    "frozen": {"verifier": {}},
    "gar": {"verifier": {"frozen": True, "sft": 0}},
    "genrm": {"annotator": {}, "generator": {"generation": 0.0}},
    "lets_verify": {"generator": {}},
    "maporl": {"partner": {"train": "lead", "formats": 0}},
    "marti": {agent: {"train": "generator", "formats": 0} for agent in ("verifier", "refiner", "partner", "aggregator")},
    "qwen_prm": {"judge": {}, "generator": {"labels": "judge"}},
    "search_self_play": {"reader": {}},
    "self_play_swe": {"injector": {"learn": "repair"}},
    "self_rewarding": {"proposer": {}},
    "self_taught_evaluators": {"generator": {}, "rewriter": {}},
    "sweet_rl": {"simulator": {}},
    "tango": FROZEN_VERIFIER,
    "tango_balanced": FROZEN_VERIFIER,
    "tango_code": FROZEN_VERIFIER,
    "tango_free": FROZEN_VERIFIER,
    "tango_free_adversary": FROZEN_VERIFIER,
    "verifier_only": {"generator": {}},
}
"""The agents of each recipe that may be behind an endpoint, with the options that they need; in all other recipes none may."""


def test_who_may_be_behind_an_endpoint_changes_only_on_purpose() -> None:
    declared = {}
    for name in RECIPES:
        recipe = RECIPES.get(name)
        found = {**recipe.inference_only_if, **{agent: {} for agent in recipe.inference_only}}
        declared[name] = {agent: options for agent, options in found.items() if agent in recipe.agents}
    assert {name: agents for name, agents in declared.items() if agents} == ENDPOINTS


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_only_agents_that_are_inference_only_may_be_behind_an_endpoint(recipe: str) -> None:
    found, short = RECIPES.get(recipe), SHORT[recipe]
    assert set(found.inference_only) <= set(found.agents) - set(short.learners)
    binding = "own" if found.bindings["own"] == ALLOWED else "shared"
    dialect = "plain" if recipe == "sweet_rl" else "terse"
    for agent in found.select_agents(found.Options(**short.options)):
        layer = {"recipe": recipe, "binding": binding, "policies": {agent: {"model": "openai:http://127.0.0.1:8000/v1#m"}}}
        needed = ENDPOINTS.get(recipe, {}).get(agent)
        if needed is not None:
            resolve([layer, short.settings, {"options": short.options | needed, "dialect": dialect}])
        if needed != {} and (agent == found.lead or binding == "own"):
            way_out = ", ".join(f"options.{name}={value}" for name, value in (needed or {}).items())
            with pytest.raises(ConfigError, match=rf"'{agent}' lives behind an endpoint.*{way_out}"):
                resolve([layer, short.settings, {"options": short.options}])


def test_adapters_stay_on_their_own_base_beside_an_endpoint(tmp_path: Path) -> None:
    model = {"policies": {"generator": {"model": "a/model"}, "verifier": {"model": "openai:http://127.0.0.1:8000/v1#m"}}}
    plan = resolve([{"recipe": "frozen", "binding": "lora"}, model])
    assert plan.policies["generator"].lora is not None and plan.policies["verifier"].lora is None
    others = {"policies": {"judge": {"model": "openai:http://127.0.0.1:8000/v1#m"}, "verifier": {"model": "another/model"}}}
    with pytest.raises(ConfigError, match="shares one base, but the policies name a/model, another/model"):
        resolve([{"recipe": "qwen_prm", "binding": "lora", "policies": {"generator": {"model": "a/model"}}}, others])


def test_the_resolved_config_has_all_settings_and_resolves_to_itself() -> None:
    own = {"policies": {"verifier": {"endpoint": {"extra": {"top_k": -1, "chat_template_kwargs": {"enable_thinking": False}}}}}}
    models = {"generator": "a/model", "verifier": "openai:http://127.0.0.1:8000/v1#a/model"}
    plan = plan_run("frozen", models=models, settings=[own])
    written = plan.config.model_dump(mode="json", exclude_none=True)
    assert written["policies"]["verifier"]["endpoint"]["retries"] == 6
    assert resolve([tomllib.loads(to_toml(written))]).config == plan.config


def test_who_trains_it_is_told_which_recipes_do_not() -> None:
    with pytest.raises(ConfigError, match=r"recipe 'tango' trains it.* recipes that only sample a verifier are frozen"):
        plan_run("tango", models={"verifier": "openai:http://127.0.0.1:8000/v1#m"})


def test_keys_go_where_they_were_meant_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("JUDGE_KEY", "another")
    own = EndpointSection(api_key_env="JUDGE_KEY")
    for url, usual in {
        "https://far/v1": KEY,
        "http://127.0.0.1:8000/v1": KEY,
        "http://[::1]/v1": KEY,
        "http://far/v1": None,
    }.items():
        address = parse_address("judge", f"openai:{url}#m")
        assert find_key("judge", address, EndpointSection()) == usual
        assert find_key("judge", address, own) == "another"
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(ConfigError, match="no environment variable JUDGE_KEY"):
        find_key("judge", address, own)
    monkeypatch.setenv("JUDGE_KEY", f"{KEY}\r\nX-Other: 1")
    with pytest.raises(ConfigError) as caught:
        find_key("judge", address, own)
    assert KEY not in str(caught.value)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Server]:
    """The embedded model behind an endpoint."""
    with serving(embedded()) as server:
        yield server


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_frozen_judge_behind_an_endpoint(
    tiny: Server, milonga: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way by the command line: trained, its verdicts readable, resumed, reported, used; and no key anywhere."""
    monkeypatch.setenv("JUDGE_KEY", KEY)
    config, out = tmp_path / "tiny.toml", tmp_path / "run"
    own = {"policies": {"verifier": {"endpoint": {"api_key_env": "JUDGE_KEY"}}}}
    config.write_text(to_toml(merge(merge(TINY, TERSE), own)))
    done = milonga("run", "frozen", "--verifier", tiny.model, "--turns", "2", "--config", config, "--out", out, "--json")
    assert done.code == 0 and done.json["compute"]["flops"] is None and done.json["compute"]["tokens"] > 0
    assert tiny.headers[-1]["Authorization"] == f"Bearer {KEY}"
    rows = JsonLines(out / "metrics.jsonl").rows()
    assert rows[1]["rollouts/verifier/unparsed_rate"] < 0.5 and rows[1]["rollouts/verifier/surprise"] is None
    assert rows[1]["rollouts/verifier/length"] is None and rows[1]["learn/generator/steps"] == 1
    assert "learn/verifier/steps" not in rows[1] and rows[1]["flow/verifier>generator"] > 0
    checks = [row for row in read_rollouts(out / "rollouts" / "turn-000001.parquet") if row["verification"]]
    assert len(checks) == 16 and {(row["policy"], row["version"]) for row in checks} == {("verifier", 0)}
    assert all(row["logprobs"] is None and row["advantages"] is None for row in checks)
    assert sorted(path.name for path in (out / "models").iterdir()) == ["generator"]
    ledger = json.loads((out / "checkpoints" / "turn-000002" / "engine.json").read_text())["ledger"]["verifier"]
    assert ledger["prefill"] > 0 and ledger["decode"] > 0 and ledger["learn"] == ledger["score"] == 0

    kept = JsonLines(out / "metrics.jsonl").rows()
    shutil.rmtree(out / "checkpoints" / "turn-000002")
    said_so = [done, milonga("resume", out, "--json"), milonga("show", out), milonga("report", out)]
    assert JsonLines(out / "metrics.jsonl").rows() == kept, "a server that honours seeds gives the same run"
    (tmp_path / "solutions.jsonl").write_text('{"problem": "3+4*5%100", "steps": ["3+4=7", "7*5=36"]}\n')
    said_so.append(milonga("verify", out, tmp_path / "solutions.jsonl", "--checks", "4", "--json"))
    assert said_so[-1].json["readable"] == 1
    assert all(one.code == 0 for one in said_so)
    assert KEY.encode() not in files(tmp_path) and not any(KEY in one.out + one.err for one in said_so)
    assert "behind an endpoint" in (out / "report.html").read_text()
    refused = milonga("export", out, "verifier", tmp_path / "model")
    assert refused.code == 2 and "it can only be sampled, not exported" in " ".join(refused.err.split())


def test_a_server_that_repeats_the_key_does_not_get_it_written(
    milonga: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    common = ["--config", tmp_path / "tiny.toml", "--turns", "1", "--out", tmp_path / "run"]
    (tmp_path / "tiny.toml").write_text(to_toml(merge(TINY, TERSE)))
    with serving(lambda body, number: said(f"Bearer {KEY}+\n=+")) as server:
        done = milonga("run", "frozen", "--verifier", server.model, *common)
    assert done.code == 0 and server.headers[0]["Authorization"] == f"Bearer {KEY}"
    with serving(lambda body, number: Reply({"error": {"message": f"wrong key {KEY}"}}, 401)) as server:
        refused = milonga("run", "frozen", "--verifier", server.model, *common[:-1], tmp_path / "other")
    assert (
        refused.code == 2 and "status 401: wrong key [key]" in " ".join(refused.err.split()) and "Traceback" not in refused.err
    )
    assert KEY.encode() not in files(tmp_path) and KEY not in done.out + done.err + refused.out + refused.err


ECHOES = {
    "with escapes of its own": Reply(
        json.dumps({"error": {"message": f"wrong key {KEY}"}}).replace("-", r"\u002d").encode(), 401
    ),
    "in a header that is none": Reply({}, 200, {f"no header {KEY}": "1"}),
}


@pytest.mark.parametrize("name", ECHOES)
def test_the_key_is_found_however_a_server_writes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(lambda body, number: ECHOES[name]) as server:
        told = refusal(server, EndpointSection(backoff=0.01, retries=0))
    assert KEY not in told and "[key]" in told


def test_the_key_is_found_in_an_answer_with_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    escaped = json.dumps(said(f"it is {KEY}").body).replace("-", r"\u002d").encode()
    with serving(lambda body, number: Reply(escaped)) as server:
        engine = behind(server)
        assert ask(engine)[0].text == "it is [key]"
        engine.close()


def test_a_placeholder_for_a_key_is_sent_and_found_in_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "1")
    with serving(lambda body, number: said("11 = 11", tokens=(111, 1))) as server:
        engine = behind(server)
        assert ask(engine)[0].text == "11 = 11" and engine.ledger.policies["judge"].prefill == 111
        engine.close()
    assert server.headers[0]["Authorization"] == "Bearer 1"


OTHERS = [
    ("verifier_only", "generator"),
    ("lets_verify", "generator"),
    ("qwen_prm", "judge"),
    ("search_self_play", "reader"),
    ("self_taught_evaluators", "generator"),
]
SOMETIMES = [("maporl", "partner"), ("cure", "tester"), ("aprm", "generator")]
"""Some of those that need options for it."""


@pytest.mark.parametrize(("recipe", "agent"), [*OTHERS, *SOMETIMES])
def test_the_other_recipes_that_only_sample_a_agent(recipe: str, agent: str, tiny: Server, tmp_path: Path) -> None:
    short, before = SHORT[recipe], len(tiny.bodies)
    options = short.options | ENDPOINTS[recipe][agent] | ({"reader": "model", "min_words": 2} if agent == "reader" else {})
    own = {"binding": "own", "options": options, "policies": {agent: {"model": tiny.model}}}
    package.run(recipe, turns=1, out=tmp_path / "run", settings=TINY | TERSE | short.settings | own, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    # A reader that never learned to read lets no question pass, and nobody learns.
    learners = set(short.learners) - {agent}
    assert agent == "reader" or any(row.get(f"learn/{learner}/steps") for row in rows for learner in learners)
    assert not any(f"learn/{agent}/steps" in row for row in rows) and not (tmp_path / "run" / "models" / agent).exists()
    assert len(tiny.bodies) > before


IN_PROSE = [
    ("self_taught_evaluators", "generator", {"iters": 1, "train": 1, "measured": 2}),
    ("self_taught_evaluators", "rewriter", {"iters": 1, "train": 1, "measured": 2}),
    ("self_rewarding", "proposer", {"prompts": "proposed", "gradings": 2}),
]


@pytest.mark.parametrize(("recipe", "agent", "options"), IN_PROSE)
def test_agents_that_write_prose_may_be_behind_an_endpoint(
    recipe: str, agent: str, options: dict[str, Any], tmp_path: Path
) -> None:
    learner = "judge" if recipe == "self_taught_evaluators" else "generator"
    task = {"name": "jsonl", "path": write_questions(tmp_path / "prompts.jsonl", answers=False), "open": True}
    with serving(lambda body, number: said(f"Question: How many pears are there on tree {number}?")) as server:
        seats = {learner: {"model": phrase_model(tmp_path)}, agent: {"model": server.model}}
        own = {"task": task, "binding": "own", "policies": seats, "options": options, "lr": 1e-3, "probe": "off"}
        quick = {"batch": {"problems": 3, "rollouts": 4}, "sampling": {"max_tokens": 10}, "eval": TINY["eval"]}
        package.run(recipe, turns=2, out=tmp_path / "run", settings=own | quick, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    assert server.bodies and any(row.get(f"learn/{learner}/steps") for row in rows)
    assert not (tmp_path / "run" / "models" / agent).exists()


def test_an_annotator_behind_an_endpoint_sees_the_reference(tmp_path: Path) -> None:
    task = {"name": "jsonl", "path": write_questions(tmp_path / "questions.jsonl")}
    with serving(lambda body, number: said("I have looked at it.\n\nVerdict: No")) as server:
        seats = {"generator": {"model": phrase_model(tmp_path)}, "annotator": {"model": server.model}}
        own = {"task": task, "binding": "own", "policies": seats, "options": {"rationales": 2}, "lr": 1e-3, "probe": "off"}
        quick = {"batch": {"problems": 3, "rollouts": 4}, "sampling": {"max_tokens": 60}, "eval": TINY["eval"]}
        package.run("genrm", turns=1, out=tmp_path / "run", settings=own | quick, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    shown = [body["messages"][0]["content"] for body in server.bodies]
    numbers = [re.search(r"Ana has (\d+) apples", text) for text in shown]
    assert shown and all(one and f"answer: {2 * int(one[1])}" in text for one, text in zip(numbers, shown, strict=True))
    assert "learn/annotator/steps" not in rows[1] and not (tmp_path / "run" / "models" / "annotator").exists()


def test_every_agent_that_is_inference_only_was_tried() -> None:
    declared = {(name, agent) for name in RECIPES for agent in RECIPES.get(name).inference_only}
    assert declared == {
        ("frozen", "verifier"),
        ("sweet_rl", "simulator"),
        ("genrm", "annotator"),
        *OTHERS,
        *((recipe, agent) for recipe, agent, _ in IN_PROSE),
    }


def test_a_simulated_user_behind_an_endpoint_beside_adapters(tmp_path: Path) -> None:
    """It reads the reference and the dialogue, and the actor hears what it says."""
    model, data = chat_folder(tmp_path), tmp_path / "requests.jsonl"
    rows = [{"question": f"Write text {n}.", "text": " ".join("abcdefghijklmnopqrstuvwxyz.,;:!?")} for n in range(60)]
    data.write_text("\n".join(map(json.dumps, rows)))
    task = {"name": "jsonl", "path": str(data), "fields": {"answer": "", "solution": "text"}}
    options = {"candidates": 4, "critic_turns": 1, "measured": 1, "questions": 1}
    few = {"batch": {"problems": 1, "rollouts": 3}, "sampling": {"max_tokens": 8}, "eval": {"problems": 1, "samples": 1}}
    with serving(lambda body, number: said("User: Make it short.")) as server:
        own = {"policies": {"generator": {"model": model}, "simulator": {"model": server.model}}, "binding": "lora"}
        settings = few | own | {"task": task, "options": options, "probe": "off"}
        package.run("sweet_rl", turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    metrics = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    assert [row["learner"] for row in metrics] == [None, "critic", "generator"]
    assert metrics[1]["learn/critic/steps"] and metrics[0]["eval/simulator/leaked"] == 0.0
    assert all("a b c d" in body["messages"][0]["content"] for body in server.bodies)
    assert sorted(path.name for path in (tmp_path / "run" / "models").iterdir()) == ["critic", "generator"]


def test_all_versions_of_a_model_behind_an_endpoint_are_one(tiny: Server, tmp_path: Path) -> None:
    """A recipe may keep a frozen judge as it was and ask for that version: what never moves needs no copy."""
    own = {"policies": {"verifier": {"model": tiny.model}}, "dialect": "terse"}
    with short_loop("frozen", tmp_path / "run", own) as loop:
        before = len(tiny.bodies)
        for action in (Action("snapshot", "verifier", "kept"), Action("reset", "verifier", "kept")):
            loop.apply_action(action)
        ctx = Context(loop.run_context, 1, "generator")
        checks = ctx.ask("verifier", ctx.ask("generator", ctx.problems(1)), tag="kept")
        assert len(checks) == 1 and len(tiny.bodies) == before + 1
        loop.engine.close()


def test_a_run_whose_server_fails_goes_on_when_it_is_back(tmp_path: Path) -> None:
    model, broken = embedded(), threading.Event()

    def answer(body: dict[str, Any], number: int) -> Reply:
        if broken.is_set() and number >= 30:
            return Reply({"error": "out of credit"}, 402)
        return model(body, number)

    with serving(answer) as server:
        run = {"turns": 2, "models": {"verifier": server.model}, "settings": TINY | TERSE, "quiet": True}
        package.run("frozen", out=tmp_path / "whole", **run)
        server.bodies.clear()
        broken.set()
        with pytest.raises(UserError, match="status 402: out of credit"):
            package.run("frozen", out=tmp_path / "cut", **run)
        assert len(JsonLines(tmp_path / "cut" / "metrics.jsonl").rows()) == 2
        broken.clear()
        package.resume(tmp_path / "cut", quiet=True)
    rows = [JsonLines(tmp_path / name / "metrics.jsonl").rows() for name in ("whole", "cut")]
    assert rows[0] == rows[1] and len(rows[0]) == 3


def test_a_comparison_with_a_judge_behind_an_endpoint(tiny: Server, tmp_path: Path) -> None:
    arms = ["frozen", f"frozen:policies.verifier.model={tiny.model}"]
    settings = {key: value for key, value in (TINY | {"dialect": "terse"}).items() if key not in ("device", "task")}
    common: dict[str, Any] = {"task": TINY["task"], "device": "cpu", "turns": 1, "settings": settings}
    with pytest.raises(ConfigError, match=r"FLOPs of policy 'verifier' are not known"):
        package.compare(arms, match="flops", seeds=2, out=tmp_path / "refused", **common)
    found = package.compare(arms, seeds=[100], jobs=1, quiet=True, out=tmp_path / "compared", **common)
    local, remote = found["arms"].values()
    assert local["flops"] > 0 and remote["flops"] is None and remote["tokens"] > 0
    assert found["failed"] == []


def test_a_bare_model_behind_an_endpoint_is_measured_and_used(tiny: Server, tmp_path: Path, milonga: Command) -> None:
    item = {"id": "a", "problem": "3+4", "steps": ["3+4=7"], "label": -1, "final_answer_correct": True}
    wrong = {"id": "b", "problem": "3+4", "steps": ["3+4=8"], "label": 0, "final_answer_correct": False}
    (tmp_path / "own.json").write_text(json.dumps([item, wrong]))
    done = milonga("eval", tiny.model, "processbench", "--file", tmp_path / "own.json", "--checks", "1", "--json")
    assert done.code == 0 and done.json["model"] == tiny.model and done.json["rows"][0]["items"] == 2
    with Pair.bare(generator="embedded", verifier=tiny.model) as pair:
        assert pair.engine.has_weights("generator") and not pair.engine.has_weights("verifier")
        (verdict,) = pair.verify(pair.solve([pair.problem("3+4*5%100")]), checks=2)
    assert len(verdict.checks) == 2 and all(isinstance(check.text, str) for check in verdict.checks)
