"""Tuning on tiny files in which some layers do nothing, so that the right mask is known; cases 7 and 12."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_gguf

from viasd_edge.engine import Engine
from viasd_edge.folders import cache_dir, masks_dir
from viasd_edge.mask import LayerMask
from viasd_edge.model import Model
from viasd_edge.runner import Runner
from viasd_edge.samples import of_file, split
from viasd_edge.search import SEARCHES
from viasd_edge.search.objective import Journal
from viasd_edge.tuning import Plan, Texts, Tuned, Tuner

pytestmark = pytest.mark.native

N_LAYER = 8
PLANTED = (2, 5)  # write nothing into the residual; an even mask of two layers has them, too
TEXT = "the quick brown fox jumps over a lazy dog and runs far away " * 40


def planted(name: str) -> bool:
    of_layer = any(name.startswith(f"blk.{layer}.") for layer in PLANTED)
    return of_layer and name.endswith(("attn_output.weight", "ffn_down.weight"))


@pytest.fixture
def model(tmp_path) -> Path:
    return tiny_gguf.write(tmp_path / "planted.gguf", layers=range(N_LAYER), zero=planted)


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(f"{TEXT} {tmp_path.name}")  # of a test's own: searches of one text share a journal
    return path


def tune(model: Path, text: Path, plan: Plan, draft: Path | None = None) -> Tuned:
    with Model(model) as target, Runner(target, n_ctx=192) as runner:
        drafter = Runner(Model(draft), n_ctx=192) if draft else None
        engine = Engine(runner, mode="exact", draft=drafter)
        path = cache_dir("searches") / f"{plan.method}.jsonl"
        path.unlink(missing_ok=True)
        texts = Texts(*split(of_file(engine, text, 6, 16)))
        tuner = Tuner(engine, plan, journal=None, path=path, texts=lambda: texts)
        tuner.search()
        return tuner.finish(hand_picked=LayerMask.parse("layers:3-4"))


@pytest.mark.parametrize("method", SEARCHES)
def test_every_search_finds_what_does_nothing(model, text, method):
    """Skipping the planted layers is the full model to the bit, so agreement is whole and nothing is charged."""
    tuned = tune(model, text, Plan(method=method, shares=(2 / N_LAYER,), blocks=False, evaluations=60))
    best = min((found for found in tuned.candidates if len(found.mask.ffn) == 2), key=lambda found: found.scores.dimr)
    assert (best.mask.attention, best.mask.ffn) == (PLANTED, PLANTED)
    assert (best.scores.agreement, best.scores.dimr) == (1.0, pytest.approx(0.0, abs=1e-6))
    assert best.scores.share == pytest.approx(2 / N_LAYER)
    others = [found for found in tuned.candidates if found is not best and not {*found.mask.ffn} <= {*PLANTED}]
    assert all(found.scores.dimr > 0 for found in others)
    assert tuned.hand_picked is not None
    assert tuned.hand_picked.scores.agreement < 1.0


@pytest.mark.parametrize("blocks", [False, True])
def test_conflayers_comes_to_the_share(model, text, blocks):
    """Blocks that write nothing have no confidence at all: of all sets the rule's last is theirs."""
    tuned = tune(model, text, Plan(method="conflayers", shares=(2 / N_LAYER,), blocks=blocks))
    smallest = min(tuned.candidates, key=lambda found: found.scores.share)
    assert (smallest.mask.attention, smallest.mask.ffn) == (PLANTED, PLANTED)
    assert smallest.scores.agreement == 1.0
    assert tuned.method == "conflayers"


def test_blocks_one_by_one(model, text):
    tuned = tune(model, text, Plan(shares=(0.25,), evaluations=60))
    best = min(tuned.finalists, key=lambda found: found.scores.dimr)
    assert best.scores.dimr == pytest.approx(0.0, abs=1e-6)
    assert {*best.mask.attention, *best.mask.ffn} <= {*PLANTED}


def test_with_a_drafter_the_mask_is_calibrated(model, text, tmp_path):
    """The drafter is the model itself: every gate is right where the slim verifier is the full model."""
    tuned = tune(model, text, Plan(shares=(0.25,), blocks=False, errors=(0.05, 0.2), evaluations=30), draft=model)
    assert [entry.error for entry in tuned.mask.calibrations] == [0.05, 0.2]
    for entry in tuned.mask.calibrations:
        assert entry.measured["error"] <= entry.error
    assert tuned.mask.fingerprint == Model(model).fingerprint
    path = tmp_path / "saved.json"
    tuned.mask.save(path)
    assert LayerMask.load(path).scores == tuned.mask.scores


def command(model: Path, text: Path, *more: str) -> list[str]:
    options = ["--text", str(text), "--samples", "6", "-n", "16", "--quiet", "--json", *more]
    return [sys.executable, "-m", "viasd_edge", "tune", str(model), *options]


def test_the_command_and_the_next_generate(model, text, monkeypatch):
    monkeypatch.delenv("VIASD_STOCK_LIB", raising=False)
    finished = subprocess.run(
        command(model, text, "--layers", "--skip", "0.25", "--evaluations", "40", "--budget", "5m"),
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(finished.stdout)
    assert {"seconds", "evaluations", "method", "mask", "scores", "predicted_ratio", "hand_picked_ratio"} <= {*report}
    assert report["text"] == "attn:2,5 ffn:2,5"
    assert report["ratio_to"] == "plain"
    saved = masks_dir() / "planted-tuned.json"
    assert report["saved"] == str(saved)
    assert LayerMask.load(saved).fingerprint == report["mask"]["model"]["fingerprint"]
    generate = [sys.executable, "-m", "viasd_edge", "-m", str(model), "--self", "-n", "4", "--json", "--quiet"]
    answer = subprocess.run([*generate, "the quick"], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["mask"] == "attn:2,5 ffn:2,5"


def interrupted(arguments: list[str], signal_: int, after: int) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The command, killed when its journal has scored `after` masks; and the journal."""
    folder = cache_dir("searches")
    before = set(folder.glob("*.jsonl"))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            found = set(folder.glob("*.jsonl")) - before
            if found and len(min(found).read_text().splitlines()) > after:
                process.send_signal(signal_)
                break
            time.sleep(0.005)
        out, err = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err), min(found)


@pytest.mark.skipif(os.name == "nt", reason="no signals to send")
def test_a_killed_search_goes_on_without_measuring_twice(model, text):
    """Case 12, which scikit-optimize's users ran into (its issues 949 and 997)."""
    arguments = command(model, text, "--budget", "1h", "--seed", "12")
    killed, path = interrupted(arguments, signal.SIGTERM, after=20)
    assert killed.returncode == -signal.SIGTERM
    journal = Journal.load(path)
    assert journal is not None
    known = len(journal.scores)
    assert known >= 20
    wanted = known + 15
    finished = subprocess.run([*arguments, "--evaluations", str(wanted)], capture_output=True, text=True, check=True)
    report = json.loads(finished.stdout)
    masks = [json.loads(line)["mask"] for line in path.read_text().splitlines()[1:] if line.endswith("}")]
    assert len(masks) == len(set(masks))
    assert report["evaluations"] == wanted
    assert known + report["measured"] == len(masks)
    assert {entry["mask"] for entry in report["candidates"]} >= {*journal.scores}


@pytest.mark.skipif(os.name == "nt", reason="no signals to send")
def test_an_interrupted_search_keeps_its_best(model, text):
    """Case 7."""
    stopped, _ = interrupted(command(model, text, "--budget", "1h", "--seed", "7"), signal.SIGINT, after=10)
    assert stopped.returncode == 130
    assert "Traceback" not in stopped.stderr
    report = json.loads(stopped.stdout)
    assert report["interrupted"]
    best = max(report["candidates"], key=lambda entry: entry["scores"]["tokens_per_s"])
    assert report["text"] == best["mask"]
    assert str(LayerMask.load(Path(report["saved"]))) == best["mask"]


def test_a_model_too_small_to_search(tmp_path, text):
    model = tiny_gguf.write(tmp_path / "two.gguf", layers=range(2))
    failed = subprocess.run(command(model, text), capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "too few layers" in failed.stderr
    assert failed.stdout == ""


@pytest.mark.parametrize("budget", ["0", "ten minutes", "10 parsecs", "-5m"])
def test_a_budget_that_is_none(model, text, budget):
    failed = subprocess.run(command(model, text, "--budget", budget), capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert "10m" in failed.stderr
