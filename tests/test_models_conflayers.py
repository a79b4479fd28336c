"""ConfLayers while generating, on real weights: exact whatever it finds, and next to no time spent in it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from viasd_edge._native import native
from viasd_edge.cli import cli
from viasd_edge.engine import Engine
from viasd_edge.limits import CONFIDENCES
from viasd_edge.model import Model
from viasd_edge.runner import Runner
from viasd_edge.search.conflayers import critical_lambdas, layer_scores
from viasd_edge.search.online import OnlineSearch, Schedule
from viasd_edge.trace import Trace

pytestmark = pytest.mark.model

PROMPTS = ["Write a Python function that returns the n-th Fibonacci number.", "Why is the sky blue?"]
ALWAYS = {"mode": "exact", "policy": "fixed", "draft_max": 4}


@pytest.fixture(scope="module")
def smol(pulled):
    with Model(pulled["smollm2-135m"]) as model, Runner(model, n_ctx=512) as runner:
        yield runner


def test_exact_under_changing_masks(smol):
    search = OnlineSearch(smol.model.n_layer, schedule=Schedule(interval=3))
    engine = Engine(smol, search=search, **ALWAYS)
    masks = set()
    for prompt in PROMPTS:
        plain = Engine(smol, mode="plain").generate(prompt, max_tokens=80)
        searched = engine.generate(prompt, max_tokens=80, on_round=lambda round_: masks.add(str(round_.draft.mask)))
        assert searched.token_ids == plain.token_ids
        assert searched.full_passes < plain.full_passes
    assert len(masks) > 3
    assert search.iterations + search.restarts > 3


def test_exact_on_the_target_of_the_default_pair(pulled):
    with Engine.open(str(pulled["qwen2.5-coder-1.5b"]), mode="plain", n_ctx=256) as plain:
        search = OnlineSearch(plain.target.model.n_layer, schedule=Schedule(interval=2))
        answer = Engine(plain.target, search=search, **ALWAYS).generate(PROMPTS[0], max_tokens=24)
        if native().kernel_name() != "none":  # upstream's K-quants depend on the batch width
            assert answer.token_ids == plain.generate(PROMPTS[0], max_tokens=24).token_ids
        assert search.iterations > 1


def test_logits_are_the_same_bytes_with_a_probe(smol):
    tokens = smol.model.tokenize(PROMPTS[0], special=False)
    found = []
    for kind in (None, *CONFIDENCES):
        smol.rewind(0)
        smol.set_probe(kind, last=2)
        found.append(smol.decode(tokens).tobytes())
    smol.set_probe(None)
    assert len(set(found)) == 1


def test_both_confidences_choose_layers(smol):
    tokens = smol.model.tokenize(PROMPTS[1], special=False)
    for kind in CONFIDENCES:
        smol.rewind(0)
        smol.set_probe(kind, last=4)
        smol.decode(tokens)
        scores = layer_scores(smol.confidences())
        assert ((scores > 0) & (scores < 2)).all()
        assert 0 < np.count_nonzero(critical_lambdas(scores) > 0) < len(scores)
    smol.set_probe(None)


def test_the_command_line_says_what_it_found(pulled, tmp_path):
    path = tmp_path / "trace.jsonl"
    command = ["generate", PROMPTS[0], "-m", str(pulled["smollm2-135m"]), "--self", "--search", "conflayers"]
    command += ["--policy", "fixed", "-n", "120", "--trace", str(path), "--json"]
    result = CliRunner().invoke(cli, command)
    answer = json.loads(result.stdout)["search"]
    assert answer["iterations"] >= 1
    assert answer["best"] is None or answer["best"]["mean_accepted"] > 0
    rounds = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert rounds[0]["search"][0]["reason"] == "start"
    assert rounds[0]["mask"]
    assert sum(len(round_.get("search", ())) for round_ in rounds) == answer["iterations"]
    assert len(Trace.read(path).rounds) == len(rounds)
