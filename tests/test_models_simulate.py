"""A replay's bookkeeping on real weights: the widths it derives are the tokens that were evaluated."""

from __future__ import annotations

import pytest
from test_models import PROMPTS

from viasd_edge.engine import Engine
from viasd_edge.simulate import passes
from viasd_edge.trace import Trace, tracing

pytestmark = pytest.mark.model

RUNS = [
    {"mode": "exact", "policy": "fixed", "drafters": ("model",), "draft_max": 5},
    {"mode": "exact", "drafters": ("model", "ngram")},
    {"mode": "exact", "policy": "fixed", "drafters": ("layerskip",), "draft_max": 3, "mask": "layers:20"},
    {"mode": "tiered", "policy": "fixed", "drafters": ("model",), "draft_max": 4, "mask": "layers:12"},
    {"mode": "tiered", "policy": "fixed", "drafters": ("model",), "keep_kv": False, "mask": "layers:12"},
    {"mode": "bild"},
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, run.values())))
def test_derived_widths_are_the_tokens_that_were_evaluated(pulled, run, tmp_path):
    """The drafter is a coarser copy of the target: right often, not always."""
    path = str(pulled["smollm2-135m"])
    with Engine.open(path, draft_model=path, draft_quant="q4_0", n_ctx=512, **run) as engine:
        for text in PROMPTS[:2]:
            file = tmp_path / "trace.jsonl"
            engine.draft.reset_work()
            with tracing(file, engine.parts) as on_round:
                engine.generate(text, max_tokens=60, on_round=on_round)
            trace = Trace.read(file)
            widths = list(passes(trace))
            works = {"full": engine.target.work["full"], "slim": engine.target.work["slim"]}
            works["draft"] = engine.draft.work["full"]
            # of guesses that were dropped unseen, some may have been what the full model chose: a pass a token narrower
            unknown = sum(max(round_.asked - 1 - round_.drafted, 0) for round_ in trace.rounds)
            assert run.get("policy") != "fixed" or unknown == 0
            for tier, work in works.items():
                ns = [n for found in widths for n in found[tier]]
                assert len(ns) == work.passes, tier
                assert work.tokens <= sum(ns) <= work.tokens + unknown * (tier == "draft"), tier
