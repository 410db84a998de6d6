"""Sampling beside vLLM: the same prompts and as many new tokens on the same GPU, in turn.

Both sides continue the same random prompts at temperature 1, untruncated, each row to its own length with no early end, and
give back token ids and log-probabilities of the sampled tokens, as learning needs them. Every call has prompts of its own, so
that no cache of an earlier one helps; the rows of a group share theirs, which both sides compute once. Calls alternate, the
first of a case is not counted, and ratios are those of neighbours.

- Ours is the sampler with kernels as `--sampler auto` has it, without a learner beside it: its weights are the working copy
  alone, and stays as it is: what a turn pays to take over what was learned is not in these figures. It also spells out the
  text.
- vLLM has its defaults (CUDA graphs, compiled, asynchronous scheduling) with prefix caching, the 16,384 tokens in a pass that
  it advises for throughput, no tokenizer, and log-probabilities in its flat form. A call is all requests at once, then steps
  until the last is done. Weights of a shape are vLLM's dummies; nothing is handed over.

Each side is a process of its own, so that none meets the other's settings, and vLLM's engine again one, its default (in one
process where that does not start). Both live side by side, or every call would cost a start of vLLM: vLLM takes `--share` of
the GPU, and we what a case needs of the rest. Only one works at a time.

The limit is what a decoding step takes at least: all weights read once, or multiplied at the peak, and the live part of
the cache read once. Bandwidth and peak are measured in the same run; prompts are free.

    python benchmarks/peers.py --out benchmarks/results/peers.json
    python benchmarks/peers.py --only 'qwen2.5-1.5b/*' --minutes 7 --out benchmarks/results/peers-1.5b.json  # one model
    python benchmarks/peers.py --tiny      # the script itself, on a CPU: our portable sampler takes the place of vLLM

The file is written after every pair of calls: a run that is cut off keeps what it has.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

if "--tiny" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton must know before it is loaded, and torch loads it

import numpy as np
import torch
from numpy.typing import NDArray

from shapes import SHAPES, conditions, keep, load_policy, make_config, parse, peaks, spread, write

MU, SIGMA = 6.18, 0.622
"""Of the logarithm of a solution's length: Qwen2.5-Coder-1.5B on competition problems wrote 538.6 tokens of at most 1,024, and
11.3 % of the solutions were cut there (`probe-1.5b-math` in docs/results/first-contact/h200.json)."""
RUNAWAY = 0.02
"""Share of the rows that run to the limit, whatever it is, as in the verifications of a Tango turn."""
PATIENCE = 420.0
"""Seconds after which a side that does not answer is given up: vLLM compiles when it starts."""
SPARE = 4 << 30
"""Bytes of the GPU that our cache leaves free: fragments, logits."""
AT_ONCE = 16384
"""Tokens in a pass of vLLM, prompts and all."""
ROUNDING = 1e-4
"""Log-probabilities of tokens that are all but certain may come out above zero by this much."""


@dataclass(frozen=True)
class Workload:
    """Rows that are asked for in one call. `most` is the most new tokens; `ragged` rows have lengths of a real run."""

    rows: int
    prompt: int
    group: int
    most: int
    ragged: bool = False

    def draw_lengths(self, measured: Sequence[int] | None = None) -> list[int]:
        """New tokens of each row: quantiles of a run's lengths, in an order of their own. The longest run to the limit."""
        if not self.ragged:
            return [self.most] * self.rows
        at = (np.arange(self.rows) + 0.5) / self.rows
        if measured is None:
            drawn = np.exp([MU + SIGMA * NormalDist().inv_cdf(share) for share in at])
            drawn[-math.ceil(RUNAWAY * self.rows) :] = self.most
        else:
            drawn = np.quantile(measured, at)
        lengths = np.clip(drawn.round().astype(int), 1, self.most)
        return [int(length) for length in np.random.default_rng(1).permutation(lengths)]

    def draw_prompts(self, vocabulary: int, call: int) -> list[NDArray[np.int64]]:
        rng = np.random.default_rng([call, self.rows])
        prompts = [rng.integers(3, vocabulary, self.prompt) for _ in range(-(-self.rows // self.group))]
        return [prompts[row // self.group] for row in range(self.rows)]


WORKLOADS = {
    "128 x 256": Workload(128, 128, 1, 256),
    "512 x 1024": Workload(512, 128, 8, 1024),
    "256 x 4096 ragged": Workload(256, 128, 8, 4096, ragged=True),
}
TINY_WORKLOADS = {"2 x 2": Workload(2, 4, 1, 2), "4 x 3 ragged": Workload(4, 4, 2, 3, ragged=True)}


@dataclass(frozen=True)
class Call:
    """What a side is asked to sample: the same for all sides."""

    prompts: list[NDArray[np.int64]]
    lengths: list[int]
    number: int


@dataclass(frozen=True)
class Sampled:
    """Ids and log-probabilities of every row."""

    ids: list[NDArray[np.int64]]
    logprobs: list[NDArray[np.float64]]

    def check(self, call: Call) -> None:
        assert [len(row) for row in self.ids] == [len(row) for row in self.logprobs] == call.lengths
        assert all(np.isfinite(row).all() and (row <= ROUNDING).all() for row in self.logprobs)


class Portable:
    """Our sampler for any model and device; in tiny runs, in the place of vLLM."""

    def __init__(self, args: argparse.Namespace) -> None:
        from milonga.engine.local import sampler

        self.device = args.device
        options = {"dtype": "bfloat16"} if args.device == "cuda" else {}
        self.policy = load_policy(args.model, args.device, **options)
        self.policy.eos = []  # nothing ends early
        self.module: Any = sampler

    def prepare(self, work: Workload) -> None:
        """Get ready for another workload."""

    def sample(self, call: Call) -> Sampled:
        from milonga.engine.base import Decoding, Ledger, Request

        # A run's rows end by themselves; these have their own limits.
        self.module.limit_new_tokens = lambda policy, requests, decoding: [call.lengths[request.key] for request in requests]
        requests = [Request(prompt, row) for row, prompt in enumerate(call.prompts)]
        done = self._run(requests, Decoding(max(call.lengths)), len(requests), Ledger())
        return Sampled([row.ids for row in done], [row.logprobs for row in done])

    def _run(self, *asked: Any) -> Any:
        return self.module.sample(self.policy, *asked)

    def describe(self) -> dict[str, Any]:
        """What it is."""
        return {"weights": self.policy.matmuls, "bytes of a weight": self.policy.compute_dtype.itemsize}

    def weigh(self) -> dict[str, float]:
        """What the last call needed."""
        return {}


class Ours(Portable):
    """The sampler with kernels; interpreted on a CPU."""

    def __init__(self, args: argparse.Namespace) -> None:
        from milonga.engine.local.cuda import sampler

        self.before = self._count_used_bytes() if args.device == "cuda" else 0
        self.peaks = peaks(args.device, args.tiny)
        super().__init__(args)
        self.module = sampler
        if args.device == "cuda":
            self.module.cache_bytes = lambda device, *_: self._count_free_bytes() - SPARE  # no learner will want the rest
        else:
            sampler.STRIDE = sampler.SMALLEST = 1  # the interpreter takes milliseconds for each program
        self.sampler = sampler.CudaSampler(self.policy)
        self.sample(Call([np.arange(3, 7)], [2], 0))
        self._drop_learner()

    def _drop_learner(self) -> None:
        """Keep the working weights alone: those that are learned would be beside them in a run."""
        assert self.sampler.decoder is not None
        weights = self.sampler.decoder.weights
        weights.refresh = lambda: None  # type: ignore[method-assign]
        # A case whose cache was refused leaves no decoder: the next one's takes these, since no others could be made.
        self.module.Weights = lambda policy: weights
        for parameter in self.policy.model.parameters():
            parameter.data = parameter.data.new_empty(0)

    def _count_used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free

    def _count_free_bytes(self) -> int:
        from milonga.engine.local.memory import measure_free_memory

        torch.cuda.empty_cache()
        return measure_free_memory(torch.device("cuda"))[0]

    def prepare(self, work: Workload) -> None:
        """Forget the sizes of the workload before: the cache is made anew, in the size of this one."""
        self.sampler.room = self.sampler.steps = self.sampler.wanted = 0

    def _run(self, *asked: Any) -> Any:
        return self.sampler.sample(*asked)

    def describe(self) -> dict[str, Any]:
        assert self.sampler.decoder is not None
        token_bytes = self.sampler.decoder.weights.token_bytes
        return super().describe() | self.peaks | {"token bytes": token_bytes, "taken by others GiB": self.before / 2**30}

    def weigh(self) -> dict[str, float]:
        decoder = self.sampler.decoder
        assert decoder is not None
        peak = 0
        if self.device == "cuda":
            peak = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()  # the first call of a case still meets the cache of the case before
        return {"slots": decoder.slots, "cache GiB": decoder.cache.nbytes / 2**30, "peak GiB": peak / 2**30}


class Vllm:
    """An engine of vLLM, stepped until all is done."""

    def __init__(self, args: argparse.Namespace) -> None:
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")  # or it would look for a network
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # only for truncated sampling, and it would compile
        # Asking whether there is a GPU initialises the driver, and a process that was forked after that cannot use it.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        from vllm import EngineArgs, LLMEngine

        works = choose_workloads(args).values()
        self.scratch = tempfile.TemporaryDirectory()
        folder = args.model
        if args.model in SHAPES:
            make_config(args.model).save_pretrained(self.scratch.name)
            folder = self.scratch.name
        chosen = {
            "model": folder,
            "load_format": "dummy" if args.model in SHAPES else "auto",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # a model's own would bring truncated sampling with it
            "max_model_len": max(work.prompt + work.most for work in works),
            "max_num_seqs": max(work.rows for work in works),
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            "seed": 0,
        }
        if args.device == "cuda":
            chosen |= {"dtype": "bfloat16", "gpu_memory_utilization": args.share, "max_num_batched_tokens": AT_ONCE}
        else:
            chosen |= {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
        self.engine = LLMEngine.from_engine_args(EngineArgs(**chosen))
        self.settings = {name: value for name, value in chosen.items() if name != "model"}
        self.sample(Call([np.arange(3, 7)], [2], 0))  # what fails only here is found at the start too

    def prepare(self, work: Workload) -> None:
        """Get ready for another workload."""

    def sample(self, call: Call) -> Sampled:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        for row, (prompt, length) in enumerate(zip(call.prompts, call.lengths, strict=True)):
            asked = SamplingParams(
                temperature=1.0, max_tokens=length, ignore_eos=True, logprobs=0, flat_logprobs=True, detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )  # fmt: skip
            self.engine.add_request(f"{call.number}-{row}", tokens_input(prompt.tolist()), asked)
        done: dict[int, Any] = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    done[int(output.request_id.split("-")[1])] = output.outputs[0]
        rows = [done[row] for row in range(len(call.prompts))]
        return Sampled([np.array(row.token_ids) for row in rows], [np.array(row.logprobs.logprobs) for row in rows])

    def weigh(self) -> dict[str, float]:
        """Nothing more than what was taken at the start."""
        return {}

    def describe(self) -> dict[str, Any]:
        import vllm

        config = self.engine.vllm_config
        cache, scheduler = config.cache_config, config.scheduler_config
        return {
            "version": vllm.__version__,
            "settings": self.settings,
            "processes": "two" if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "1" else "one",
            "asynchronous": getattr(scheduler, "async_scheduling", None),
            "graphs": str(getattr(config.compilation_config, "cudagraph_mode", None)),
            "cache tokens": (cache.num_gpu_blocks or 0) * cache.block_size,
        }


SIDES: dict[str, Callable[[argparse.Namespace], Any]] = {"ours": Ours, "portable": Portable, "vllm": Vllm}


def serve(args: argparse.Namespace) -> None:
    """Be a side: read what is asked, one JSON object a line, and answer so. What libraries print goes to the log."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side: Any = None
    works = choose_workloads(args)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "start":
                side = SIDES[args.side](args)
                found: dict[str, Any] = {"described": side.describe(), "conditions": conditions(args.device)}
            elif asked["do"] == "prepare":
                side.prepare(works[asked["workload"]])
                found = {}
            else:
                found = sample(side, works[asked["workload"]], asked["call"], args)
        except Exception as error:  # whatever it is, the other side and the other cases go on
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:1500]}"}
        channel.write(json.dumps(found) + "\n")
        channel.flush()


def sample(side: Any, work: Workload, number: int, args: argparse.Namespace) -> dict[str, Any]:
    """One call, timed from prompts as ids to all that was sampled as arrays."""
    prompts = work.draw_prompts(make_config(args.model).vocab_size, number)
    call = Call(prompts, work.draw_lengths(args.measured), number)
    began = time.perf_counter()
    done = side.sample(call)
    seconds = time.perf_counter() - began
    done.check(call)
    return {"seconds": seconds, "surprise": -float(np.concatenate(done.logprobs).mean()), **side.weigh()}


class Process:
    """A side in a process and a group of its own. One that does not answer is ended, and answers nothing more."""

    def __init__(self, side: str, arguments: Sequence[str], log: Path, **environment: str) -> None:
        with log.open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, __file__, *arguments, "--side", side], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=file, text=True, start_new_session=True, env=os.environ | environment,
            )  # fmt: skip
        self.alive = True

    def ask(self, **asked: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        if not self.alive:
            return {"error": "has ended"}
        with selectors.DefaultSelector() as selector, suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if selector.select(PATIENCE) and (line := self.process.stdout.readline()):
                found: dict[str, Any] = json.loads(line)
                return found
        self.close(patience=2)
        return {"error": f"no answer within {PATIENCE:.0f} s, or the process ended: code {self.process.returncode}"}

    def close(self, patience: float = 30) -> None:
        """End it and all that it has started, which gives back their memory."""
        if not self.alive:
            return
        self.alive = False
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self.process.communicate(timeout=patience)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Benchmark:
    """All that is measured in one go, and its result so far."""

    def __init__(self, args: argparse.Namespace, scratch: Path) -> None:
        self.args = args
        self.log = args.out.with_suffix(".log") if args.out else scratch / "log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        self.command = "python " + " ".join(sys.argv)
        self.result: dict[str, Any] = {"share": args.share, "starts": {}, "cases": {}, "left out": []}

    def is_late(self) -> bool:
        return time.monotonic() - self.began > 60 * self.args.minutes

    def write(self) -> None:
        write(self.result, self.args.out)

    def measure_model(self) -> None:
        """All cases of a model, with each side started once."""
        label, passed = Path(self.args.model).name, [*sys.argv[1:], "--model", self.args.model]
        with ExitStack() as stack:
            sides: dict[str, Process] = {}
            about: dict[str, Any] = {}
            for side in () if self.is_late() else reversed(self.args.sides):  # vLLM first: it measures what is free
                process, found = self._start(side, passed, stack)
                self.result |= found.pop("conditions", {}) | {"command": self.command}
                self.result["starts"].setdefault(label, {})[side] = found
                self.write()
                if "error" not in found:
                    sides[side] = process
                    about[side] = found["described"]
            for name, work in choose_workloads(self.args).items():
                if self.is_late() or not sides:
                    self.result["left out"].append(f"{label}/{name}")
                    continue
                case = self.result["cases"].setdefault(f"{label}/{name}", {})
                Case(self, work, case, {side: sides[side] for side in self.args.sides if side in sides}, about).measure(name)
        if not self.args.tiny:
            time.sleep(3)  # vLLM refuses to start while others still give memory back
        self.write()

    def _start(self, side: str, passed: Sequence[str], stack: ExitStack) -> tuple[Process, dict[str, Any]]:
        """Start a side; vLLM as it does by default, with its engine in another process, and if that fails in one."""
        for several in ("1", "0") if side == "vllm" else ("1",):
            process = stack.enter_context(Process(side, passed, self.log, VLLM_ENABLE_V1_MULTIPROCESSING=several))
            began = time.monotonic()
            found = process.ask(do="start")
            found["start s"] = time.monotonic() - began
            if "error" not in found:
                break
            process.close()
            found["log"] = self.log.read_text(errors="replace")[-3000:]
        return process, found


@dataclass
class Case:
    """One workload of one model: calls of the sides in turn. `result` grows with every pair."""

    whole: Benchmark
    work: Workload
    result: dict[str, Any]
    sides: dict[str, Process]
    about: dict[str, Any]

    def measure(self, name: str) -> None:
        lengths = self.work.draw_lengths(self.whole.args.measured)
        seconds: dict[str, list[float]] = {side: [] for side in self.sides}
        self.result |= {"rows": self.work.rows, "prompt": self.work.prompt, "group": self.work.group}
        self.result |= {"tokens": sum(lengths), "longest": max(lengths)}
        for process in self.sides.values():
            process.ask(do="prepare", workload=name)
        for call in range(self.whole.args.repeats + 1):
            for side in list(self.sides)[:: 1 if call % 2 else -1]:
                found = self.sides[side].ask(do="sample", workload=name, call=call)
                self._keep(side, found, seconds[side], call == 0)
            self._summarise(lengths, seconds)
            self.whole.write()
            if call and self.whole.is_late():
                break

    def _keep(self, side: str, found: dict[str, Any], seconds: list[float], first: bool) -> None:
        """Keep what a side answers. One that failed is asked no more in this case."""
        if "error" in found:
            del self.sides[side]
        else:
            took = found.pop("seconds")
            if first:
                found["first s"] = took
            else:
                seconds.append(took)
        self.result.setdefault(side, {}).update(found)

    def _summarise(self, lengths: Sequence[int], seconds: dict[str, list[float]]) -> None:
        """Seconds, tokens a second, ratios of neighbours; and what the hardware would allow."""
        measured = {side: times for side, times in seconds.items() if times}
        for side, times in measured.items():
            self.result[side] |= {"seconds": spread(times), "tokens/s": sum(lengths) / spread(times)["median"]}
        if len(measured) == 2:
            (mine, ours), (other, theirs) = measured.items()
            ratios = [them / us for us, them in zip(ours, theirs, strict=False)]
            self.result[f"{mine} over {other}"] = spread(ratios) | {"pairs": len(ratios)}
        if "ours" in measured:
            self.result |= compute_limit(self.work, lengths, self.about["ours"])
            self.result["of the limit"] = self.result["ours"]["tokens/s"] / self.result["limit tokens/s"]


def compute_limit(work: Workload, lengths: Sequence[int], about: dict[str, Any]) -> dict[str, float]:
    """Tokens a second if a decoding step took no more than it must, and the most tokens that are needed at once in a cache."""
    bandwidth, flops = 1e9 * about["gb_per_s"], 1e12 * about["tflops"]
    # Rows that have a token of number n, and what lies in the cache before it.
    number = np.arange(max(lengths))
    alive = work.rows - np.searchsorted(np.sort(lengths), number, side="right")
    products = np.maximum(about["weights"] * about["bytes of a weight"] / bandwidth, 2 * about["weights"] * alive / flops)
    least = products + alive * (work.prompt + number) * about["token bytes"] / bandwidth
    live = alive * number + work.prompt * work.rows / work.group
    return {"limit tokens/s": sum(lengths) / float(least.sum()), "tokens needed at once": float(live.max())}


def choose_workloads(args: argparse.Namespace) -> dict[str, Workload]:
    """The workloads of a model that `--only` leaves."""
    works = TINY_WORKLOADS if args.tiny else WORKLOADS
    label = Path(args.model).name
    return {name: work for name, work in works.items() if any(fnmatch.fnmatch(f"{label}/{name}", one) for one in args.only)}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = ["qwen2.5-1.5b", "qwen2.5-0.5b", "qwen2.5-7b", "smollm2-135m"]
    parser.add_argument("--models", nargs="+", default=models, help=f"folders, or shapes: {', '.join(SHAPES)}")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="cases, such as 'qwen2.5-1.5b/*'")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of calls of each case")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no case, and no pair but a first, after so many")
    parser.add_argument("--share", type=float, default=0.4, help="of the GPU's memory, for vLLM")
    parser.add_argument("--lengths", type=Path, help="a JSON list of lengths of rollouts, for the ragged rows")
    parser.add_argument("--sides", nargs=2, choices=SIDES, default=["ours", "vllm"])
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    args = parse(parser, models=["tiny"], repeats=1, sides=["ours", "portable"])
    args.device = "cuda" if torch.cuda.is_available() and not args.tiny else "cpu"
    args.measured = json.loads(args.lengths.read_text()) if args.lengths else None
    if args.device == "cpu" and not args.tiny:
        parser.error("a GPU is needed; --tiny tries the script without")
    if "vllm" in args.sides and importlib.util.find_spec("vllm") is None:
        parser.error("vLLM is not installed: pip install vllm")
    return args


def main() -> None:
    args = parse_arguments()
    if args.side:
        serve(args)
        return
    with tempfile.TemporaryDirectory() as scratch:
        benchmark = Benchmark(args, Path(scratch))
        for model in args.models:
            args.model = model
            if choose_workloads(args):
                benchmark.measure_model()
        keep(benchmark.result, args.out)


if __name__ == "__main__":
    main()
