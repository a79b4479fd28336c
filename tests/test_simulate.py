"""Replaying traces: widths derived from rounds made by hand, costs from curves made by hand."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from viasd_edge.cli import cli
from viasd_edge.costs import Weights
from viasd_edge.curves import Curve
from viasd_edge.errors import TraceError
from viasd_edge.mask import LayerMask
from viasd_edge.profiles import Measured, Profile, Roofline
from viasd_edge.registry import shipped
from viasd_edge.simulate import passes, predict, simulate
from viasd_edge.trace import Trace

FULL = Curve((1, 2, 4, 8), (0.100, 0.110, 0.130, 0.170))
DRAFT = Curve((1, 2, 4), (0.020, 0.024, 0.032))
SLIM = Curve((1, 4), (0.080, 0.095))
HEADER = {"trace": 1, "mode": "exact", "model": "full.gguf", "draft_model": "draft.gguf", "mask": None}


def a_round(n_past, drafter=None, drafted=0, accepted=0, *, asked=None, own=1, slim=0, full=None):
    """A round as trace.round_record writes it; `own` tokens of a verifier follow the accepted ones."""
    return {
        "n_past": n_past,
        "drafter": drafter,
        "drafted": [7] * drafted,
        "asked": drafted if asked is None else asked,
        "accepted": accepted,
        "emitted": [[7, "draft"]] * accepted + [[8, "full"]] * own,
        "slim_width": slim,
        "full_width": drafted + 1 if full is None else full,
        "draft_ms": 20.0,
        "slim_ms": 0.0,
        "full_ms": 105.0,
    }


def write(path, *rounds, **header):
    lines = [{**HEADER, **header}, *rounds]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def trace(tmp_path):
    return lambda *rounds, **header: Trace.read(write(tmp_path / "hand.jsonl", *rounds, **header))


def widths(trace, tier="draft"):
    return [found[tier] for found in passes(trace)]


def test_the_first_guess_also_evaluates_what_the_drafter_has_not_seen(trace):
    made = trace(
        a_round(9, "model", 3, 3),  # it has seen the whole prompt: its first guess was there
        a_round(13, "model", 3, 1),  # its own last guess and the full model's token are new
        a_round(15, "model", 2, 0),  # one guess stood, two of three were evaluated: only the full model's token is new
        a_round(16, "model", 1, 0),
        a_round(17),
        a_round(18, "ngram", 4, 2),
        a_round(21, "model", 2, 2),  # five tokens were decoded without it
        a_round(24),
    )
    assert widths(made) == [[1, 1], [2, 1, 1], [1, 1], [1], [], [], [5, 1], []]
    assert widths(made, "full") == [[4], [4], [3], [2], [1], [5], [3], [1]]
    assert made.tokens == sum(len(w) for w in widths(made, "full")) + 8


def test_guesses_that_were_not_worth_verifying_were_made_nonetheless(trace):
    made = trace(a_round(9, "model", 2, 2, asked=3), a_round(12, "model", 0, 0, asked=1), a_round(13, "model", 1, 1))
    assert widths(made) == [[1, 1], [1], [1]]
    assert widths(made, "full") == [[3], [1], [2]]


def test_a_draft_for_which_there_was_no_room_cost_nothing(trace):
    assert widths(trace(a_round(9, "model"), a_round(10, "chain"))) == [[], []]


def test_tiered_rounds_may_end_without_a_token_of_a_verifier(trace):
    made = trace(
        a_round(9, "model", 3, 3, own=0, slim=3, full=0), a_round(12, "model", 2, 1, slim=2, full=3), mode="tiered"
    )
    assert widths(made) == [[1, 1], [1, 1]]
    assert widths(made, "slim") == [[3], [2]]
    assert widths(made, "full") == [[], [3]]


def test_the_target_under_its_mask_drafts_in_slim_passes(trace):
    made = trace(a_round(9, "layerskip", 2, 1, asked=3), mask="attn:1 ffn:1")
    assert (widths(made), widths(made, "slim")) == ([[]], [[1, 1, 1]])


@pytest.mark.parametrize("drafter", ["filtered", "chain", "cascade"])
def test_drafters_whose_passes_are_not_traced_are_refused(trace, drafter):
    with pytest.raises(TraceError, match=rf"^hand: .*'{drafter}'; trace a run with --drafter model"):
        list(passes(trace(a_round(9, drafter, 1, 1))))


def test_seconds_are_those_of_the_curves(trace):
    made = trace(a_round(9, "model", 3, 3), a_round(13, "model", 1, 0, slim=1), a_round(14))
    found = predict(made, {"full": FULL, "draft": DRAFT, "slim": SLIM}, {})
    assert found.ms == pytest.approx({"draft": 2 * 20 + 24, "slim": 80, "full": 130 + 110 + 100})
    assert found.tokens == 6
    assert found.tokens_per_s == pytest.approx(6 / sum(found.ms.values()) * 1e3, abs=1e-3)
    assert (found.plain_tokens_per_s, found.ratio) == (10.0, pytest.approx(found.tokens_per_s / 10, abs=1e-3))
    assert found.traced_tokens_per_s == pytest.approx(6 / 0.375)


def test_plain_decoding_is_plain_decoding_anywhere(trace):
    made = trace(*(a_round(9 + i) for i in range(5)), mode="plain", draft_model=None)
    assert predict(made, {"full": FULL}, {}).ratio == 1.0


def test_a_roofline_reads_once_and_multiplies_by_the_token():
    curve = Roofline(10.0, 100.0, 0.5, 0.5, 1.0).curve(10**9, 2 * 10**9)
    assert [curve.at(n) for n in (1, 4, 5, 6, 100)] == pytest.approx([0.201, 0.201, 0.201, 0.241, 4.001])
    flat = Roofline(10.0, float("inf"), 1.0, 1.0, 0.0).curve(10**9, 10**9)
    assert flat.at(1) == flat.at(64) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="above 0"):
        Roofline(0.0, 100.0, 0.5, 0.5, 0.0)


def test_a_mask_takes_its_blocks_out():
    weights = Weights({"output.weight": (5, 10), "blk.1.attn_q.weight": (2, 4), "blk.1.ffn_up.weight": (3, 6)})
    assert weights.per_pass() == (10, 20)
    assert weights.per_pass(LayerMask.parse("ffn:1")) == (7, 14)
    assert weights.per_pass(LayerMask.parse("layers:1-10")) == (5, 10)


@pytest.mark.parametrize("name", sorted(path.stem for path in shipped("profiles").glob("*.toml")))
def test_shipped_profiles_say_what_they_are(name):
    profile = Profile.load(name)
    assert profile.description.startswith("measured" if profile.is_measured else "modelled")
    if isinstance(profile.device, dict):
        assert set(profile.device) == {"full", "draft", "slim"}
    else:
        assert profile.device.curve(10**9, 10**9).at(1) > 0


def test_measured_curves_are_of_their_own_models_only(trace, tmp_path):
    path = write(tmp_path / "one.jsonl", a_round(9, "model", 2, 2))
    device = {"full": Measured("full.gguf", None, FULL), "draft": Measured("draft.gguf", None, DRAFT)}
    profile = Profile("here", "measured", device)
    [found] = simulate([path], profile)
    assert found.ms == pytest.approx({"draft": 20, "slim": 0, "full": 120})
    assert {tier: (source.file, source.times) for tier, source in found.sources.items()} == {
        "full": ("full.gguf", "measured"),
        "draft": ("draft.gguf", "measured"),
    }
    other = write(tmp_path / "two.jsonl", a_round(9), model="other.gguf")
    with pytest.raises(TraceError, match=r"has measured full\.gguf, mask - as its full tier, not other\.gguf"):
        simulate([other], profile)
    slim = write(tmp_path / "three.jsonl", a_round(9, "model", 1, 1, slim=1), mask="attn:1 ffn:1")
    with pytest.raises(TraceError, match="has measured nothing as its slim tier"):
        simulate([slim], profile)


MEASURED = """\
description = "measured: by hand"
[full]
model = "full.gguf"
n = [1, 2, 4, 8]
ms = [100, 110, 130, 170]
[draft]
model = "draft.gguf"
n = [1, 2, 4]
ms = [20, 24, 32]
"""


def invoke(*arguments):
    return CliRunner().invoke(cli, ["bench", "simulate", *map(str, arguments)])


def test_the_command(tmp_path):
    profile = tmp_path / "hand.toml"
    profile.write_text(MEASURED)
    path = write(tmp_path / "hand.jsonl", a_round(9, "model", 3, 3), a_round(13))
    result = invoke("--trace", path, "--trace", path, "--profile", profile, "--json")
    answer = json.loads(result.stdout, parse_constant=pytest.fail)
    assert answer["profile"] == {"name": "hand", "description": "measured: by hand", "measured": True}
    assert len(answer["predictions"]) == 2
    assert list(answer["predictions"][0]) == [
        *("trace", "mode", "tokens", "traced_tokens_per_s", "tokens_per_s", "plain_tokens_per_s", "ratio", "ms"),
        "sources",
    ]
    assert answer["predictions"][0]["ms"] == {"draft": 40.0, "slim": 0.0, "full": 230.0}
    shown = invoke("--trace", path, "--profile", profile).stdout
    assert "full: measured times of full.gguf" in shown
    assert "Which drafts stand is as traced" in shown


@pytest.mark.parametrize(
    ("lines", "profile", "reason"),
    [
        (["{"], None, r"line 1: is not of a trace"),
        ([], None, r"line 1: is not of a trace"),
        (['{"trace": 2}'], None, r"trace format 2"),
        ([json.dumps(HEADER), "[]"], None, r"line 2: is not of a trace"),
        ([json.dumps(HEADER), json.dumps(a_round(9)), '{"n_past"'], None, r"line 3: is not of a trace"),
        ([json.dumps(HEADER)], None, "holds no tokens"),
        (["{}"], "nowhere", "no profile of that name"),
        (["{}"], "[full]\nmodel = 3", "is not a profile"),
        (["{}"], "[full", "is not a profile"),
        (["{}"], '[full]\nmodel = "m"\nn = [2]\nms = [1]', "is not a profile"),
        (["{}"], "[roofline]\nint8_gmacs = 1.0", "is not a profile"),
        ([json.dumps(HEADER), json.dumps(a_round(9))], "flat", r"ran full\.gguf, .*name a file with --model"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(tmp_path, lines, profile, reason):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    device = tmp_path / "device.toml"
    device.write_text(profile if profile and "[" in profile else MEASURED)
    result = invoke("--trace", path, "--profile", device if profile is None or "[" in profile else profile)
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert re.search(reason, line), line
