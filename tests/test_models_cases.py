"""Kinds of failure that other engines were reported for, on real weights: interrupts, widths, threads, bad drafts."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from test_models import PROMPTS

from viasd_edge.curves import Curve
from viasd_edge.engine import Engine
from viasd_edge.errors import BusyError
from viasd_edge.mask import LayerMask
from viasd_edge.model import Model
from viasd_edge.modes import Parts
from viasd_edge.policy import Auto, Costs, Fixed
from viasd_edge.render import summary
from viasd_edge.runner import Runner
from viasd_edge.strategies import Exact, Guess, Sampling, Stats, speculative
from viasd_edge.strategies.common import greedy

pytestmark = pytest.mark.model

LONG = "Write a very long story about a river, chapter by chapter."

WIDTHS = (2, 3, 4, 8)  # of drafts, and of what a probe feeds at a time


@pytest.fixture(scope="module")
def smol(pulled):
    with Model(pulled["smollm2-135m"]) as model, Runner(model, n_ctx=1024) as runner:
        yield runner


# case 7: Ctrl-C
def started(pulled, tmp_path, *options):
    """The command at work on a long answer in another process: its trace has reached the disk."""
    trace = tmp_path / "trace.jsonl"
    command = [sys.executable, "-m", "viasd_edge", "generate", "-m", str(pulled["smollm2-135m"]), "-n", "500"]
    command += ["--mode", "plain", "--trace", str(trace), *options, LONG]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    while process.poll() is None and not (trace.exists() and trace.stat().st_size):
        time.sleep(0.02)
    return process


def test_an_interrupt_keeps_text_and_report(pulled, tmp_path):
    process = started(pulled, tmp_path)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    text, talk = process.communicate(timeout=20)
    assert time.monotonic() - asked < 3
    assert (process.returncode, text.endswith("\n")) == (130, True)
    assert len(text) > 20
    assert "tokens/s" in talk
    assert "Traceback" not in talk
    trace = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in trace)


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.3])
def test_interrupts_that_follow_each_other_cost_nothing_more(pulled, tmp_path, pause):
    process = started(pulled, tmp_path, "--json")
    process.send_signal(signal.SIGINT)
    time.sleep(pause)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    out, talk = process.communicate(timeout=20)
    answer = json.loads(out)
    assert (process.returncode, talk) == (130, "")
    assert answer["finish_reason"] == "interrupted"
    assert 0 < answer["timings"]["predicted_n"] == len(answer["token_ids"]) < 500
    assert answer["text"]


@pytest.mark.parametrize("mode", ["plain", "exact", "tiered"])
def test_after_an_interrupt_the_next_generation_is_as_if_fresh(pulled, mode):
    path = str(pulled["smollm2-135m"])
    options = {"mode": mode, "n_ctx": 512, "draft_model": path, "mask": "layers:12", "draft_quant": None}
    options["draft_max"] = 3  # ten rounds at least
    with Engine.open(path, **options) as fresh, Engine.open(path, **options) as engine:
        whole = fresh.generate(PROMPTS[0], max_tokens=40)
        for at in (1, 9):
            stream = engine.stream(PROMPTS[0], max_tokens=40, on_round=interrupt_at(at))
            with pytest.raises(KeyboardInterrupt):
                list(stream)
            partial = stream.result()
            assert partial.finish_reason == "interrupted"
            assert partial.token_ids == whole.token_ids[: len(partial.token_ids)]
            assert engine.generate(PROMPTS[0], max_tokens=40).token_ids == whole.token_ids


def interrupt_at(round_number):
    """An `on_round` that is interrupted, as a signal would between two tokens."""
    rounds = iter(range(1, round_number))

    def on_round(_round):
        if next(rounds, None) is None:
            raise KeyboardInterrupt

    return on_round


def test_an_interrupt_within_a_pass_leaves_nothing_behind(smol, monkeypatch):
    """The library has evaluated tokens, and the runner has not noted so."""
    engine = Engine(smol, mode="plain")
    whole = engine.generate(PROMPTS[1], max_tokens=30)
    passes = iter(range(12))
    decode_batch = Runner._decode_batch

    def interrupted(self, tokens, n_rows, *, slim):
        before = self.n_past
        decode_batch(self, tokens, n_rows, slim=slim)
        if next(passes, None) is None:
            self.n_past = before
            raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "_decode_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS[0], max_tokens=30)
    monkeypatch.undo()
    assert engine.generate(PROMPTS[1], max_tokens=30).token_ids == whole.token_ids


# case 9: greedy identity
class Echo:
    """Drafts a known answer, every seventh token of it wrong."""

    name = "echo"

    def __init__(self, prompt, answer):
        self._tokens = [*prompt, *((token + 1 if i % 7 == 6 else token) for i, token in enumerate(answer))]

    def begin(self, prompt):
        pass

    def guesses(self, tokens):
        for token in self._tokens[len(tokens) :]:
            yield Guess(token, 1.0)


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b"])
def test_the_answer_does_not_depend_on_the_width_of_passes(pulled, our_kernels, name):
    with Model(pulled[name]) as model, Runner(model, n_ctx=512) as runner:
        engine = Engine(runner, mode="plain")
        for text in PROMPTS:
            prompt = engine.prompt_tokens(text)
            chooser = Sampling().chooser(prompt)
            alone = [token.id for token in Parts(runner, "plain").tokens(prompt, None, **plan(80))]
            for width in WIDTHS:
                planner = Fixed(Echo(prompt, alone), draft_max=width)
                tokens = speculative(
                    runner, planner, prompt, rule=Exact(chooser), max_tokens=80, stats=(stats := Stats())
                )
                assert [token.id for token in tokens] == alone, (text, width)
                assert 0 < stats.draft.accepted < stats.draft.tested
                assert runner.work["full"].passes < 80
            width = WIDTHS[PROMPTS.index(text)]
            assert probed(runner, prompt, alone, width) == alone, (text, width)


def plan(max_tokens):
    return {"sampling": Sampling(), "max_tokens": max_tokens, "stats": Stats()}


def probed(runner, prompt, answer, width):
    """The model's choices for a known answer that is fed `width` tokens at a time."""
    runner.rewind(0)
    runner.decode(prompt[:-1], rows=0)
    fed = [prompt[-1], *answer[:-1]]
    return [token for at in range(0, len(fed), width) for token in greedy(runner.decode(fed[at : at + width]))]


# case 13: threads
def in_threads(*calls):
    """What each call returned, or raised."""
    found = [None] * len(calls)

    def run(i):
        try:
            found[i] = calls[i]()
        except Exception as error:  # noqa: BLE001  # it is what we look at
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_two_engines_in_two_threads(pulled):
    path = str(pulled["smollm2-135m"])
    exact = {"mode": "exact", "mask": "layers:20", "drafters": ("layerskip",), "policy": "fixed", "draft_max": 3}
    with (
        Engine.open(path, mode="plain", n_ctx=512, n_threads=1) as one,
        Engine.open(path, self_speculation=True, n_ctx=512, n_threads=1, **exact) as other,
    ):
        calls = [lambda: one.generate(PROMPTS[0], max_tokens=40), lambda: other.generate(PROMPTS[1], max_tokens=40)]
        alone = [call().token_ids for call in calls]
        for _ in range(2):
            assert [found.token_ids for found in in_threads(*calls)] == alone


def test_two_streams_of_one_engine_in_two_threads(smol):
    engine = Engine(smol, mode="plain")
    whole = engine.generate(PROMPTS[1], max_tokens=40)
    older, newer = engine.stream(LONG, max_tokens=400), engine.stream(PROMPTS[1], max_tokens=40)
    begun = threading.Event()

    def first():
        for _ in older:
            begun.set()

    def second():
        begun.wait(timeout=30)
        for _ in newer:
            pass

    refused, fine = in_threads(first, second)
    assert isinstance(refused, BusyError)
    assert fine is None
    assert older.result().finish_reason == "interrupted"
    assert newer.result().token_ids == whole.token_ids
    assert engine.generate(PROMPTS[1], max_tokens=40).token_ids == whole.token_ids


# case 14: never slower
class Hopeless:
    """Guesses at random, very sure of itself."""

    name = "hopeless"

    def begin(self, prompt):
        self._random = random.Random(0)  # noqa: S311  # a test's

    def guesses(self, tokens):
        while True:
            yield Guess(self._random.randrange(1000, 40000), 0.99)


def test_a_hopeless_drafter_is_given_up_and_the_report_says_so(smol, monkeypatch):
    plain = Engine(smol, mode="plain").generate(PROMPTS[0], max_tokens=120)
    costs = Costs(Curve((1, 2, 8), (0.010, 0.011, 0.017)), {"hopeless": 0.002})
    monkeypatch.setattr(Parts, "planner", lambda _parts: Auto([Hopeless()], costs, draft_max=8))
    generation = Engine(smol, mode="exact", mask=LayerMask.parse("layers:12")).generate(PROMPTS[0], max_tokens=120)
    assert generation.token_ids == plain.token_ids
    assert generation.gave_up
    assert "drafting did not pay for a while: decoded plainly there" in summary(generation)
    rounds = {row["drafter"]: row["rounds"] for row in generation.policy}
    assert rounds["hopeless"] < rounds["none"] / 4
    assert generation.timings["draft_n"] > 0
