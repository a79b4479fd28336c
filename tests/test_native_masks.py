"""Which mask a real model takes, by its fingerprint."""

from __future__ import annotations

import json

import pytest
import tiny_gguf
from masks_written import CALIBRATION, of, run_cli, write

from viasd_edge.engine import Engine, find_mask
from viasd_edge.errors import MaskError
from viasd_edge.mask import LayerMask
from viasd_edge.model import fingerprint

pytestmark = pytest.mark.native


@pytest.fixture
def pair(tmp_path):
    """(target, drafter): different files."""
    return tiny_gguf.write(tmp_path / "target.gguf"), tiny_gguf.write(tmp_path / "draft.gguf", layers=[0, 1])


def opened_mask(target, draft, **options):
    """The mask that an engine takes, and the gate it runs with."""
    with Engine.open(str(target), draft_model=str(draft), n_ctx=64, draft_quant=None, **options) as engine:
        return engine.mask and engine.mask.name, engine.parts.gate.name


def test_the_newest_of_this_model_where_a_mode_needs_one(pair, mine):
    target, draft = pair
    with pytest.raises(MaskError, match="tiered mode needs a mask"):
        opened_mask(*pair, mode="tiered")
    assert opened_mask(*pair, self_speculation=True) == (None, "ratio")
    entry = {**CALIBRATION, "draft": fingerprint(draft)}
    write(mine, "other", age=0)
    write(mine, "new", age=1, model=of(target))
    write(mine, "ready", age=2, model=of(target), calibrations=[entry])
    write(mine, "readier", age=3, model=of(target), calibrations=[entry])
    (mine / "broken.json").write_text("[]")
    assert opened_mask(*pair, mode="tiered") == ("new", "ratio")
    assert opened_mask(*pair, self_speculation=True) == ("new", "ratio")
    assert opened_mask(*pair, tolerance=0.01) == ("ready", "chow")
    assert opened_mask(*pair, mode="tiered", mask="layers:1") == ("custom", "ratio")
    assert opened_mask(*pair, tolerance=0.01, mask="readier") == ("readier", "chow")
    for options in (
        {"mode": "exact"},
        {"mode": "plain"},
        {"tolerance": 0},
        {"mode": "plain", "self_speculation": True},
    ):
        assert opened_mask(*pair, **options)[0] is None
    for options in ({"tolerance": 0.001}, {"tolerance": 0.01, "mask": "new"}):
        with pytest.raises(MaskError, match="mask new is not calibrated for this drafter"):
            opened_mask(*pair, **options)


def test_find_mask_and_open_agree_on_the_requantised_drafter(tmp_path, mine):
    """The drafter that calibrations name is the file it runs from."""
    target = tiny_gguf.write(tmp_path / "target.gguf")
    with Engine.open(str(target), draft_model=str(target), mode="exact", n_ctx=64) as engine:
        draft = engine.draft.model.fingerprint
    write(mine, "new", age=1, model=of(target))
    write(mine, "ready", age=2, model=of(target), calibrations=[{**CALIBRATION, "draft": draft}])
    for tolerance, name in ((0.01, "ready"), (0.001, "new")):
        assert find_mask(str(target), str(target), tolerance=tolerance).name == name
    with Engine.open(str(target), draft_model=str(target), tolerance=0.01, n_ctx=64) as engine:
        assert engine.mask.name == "ready"


def test_generate_uses_a_mask_that_was_imported_for_its_model(tmp_path, pair):
    target, draft = pair
    path = tmp_path / "out.json"
    assert run_cli("masks", "export", "layers:1", path).exit_code == 0
    refused = run_cli("masks", "import", write(tmp_path, "beyond", skip_ffn=[9], model=of(target)), "-m", target)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert run_cli("masks", "import", path, "--name", "mine", "-m", target).exit_code == 0
    listed = json.loads(run_cli("masks", "list", "-m", target, "--json").stdout)["masks"]
    assert [(entry["name"], entry["share"]) for entry in listed] == [("mine", 0.25)]
    options = ("-m", target, "-md", draft, "-n", 4, "-c", 64, "--policy", "fixed", "--json", "--raw")
    answer = run_cli("generate", "abc", "--mode", "tiered", *options)
    assert answer.exit_code == 0, answer.stderr
    assert json.loads(answer.stdout)["mask"] == "attn:1 ffn:1"


def test_calibrate_keeps_what_it_finds_where_generate_looks(tmp_path, pair, mine):
    target, draft = pair
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog and runs away " * 8)
    arguments = ["calibrate", "-m", target, "-md", draft, "--mask", "layers:1", "--name", "found", "--error", "0.99"]
    result = run_cli(*arguments, "--text", text, "-n", 16, "--samples", 3, "--gate", "chow", "-t", 1)
    assert result.exit_code == 0, result.output
    found = LayerMask.load(mine / "found.json")
    assert (found.fingerprint, found.model, found.n_layer) == (fingerprint(target), "target", tiny_gguf.N_LAYER)
    assert "cores" in found.device
    assert found.created
    assert find_mask(str(target), str(draft), tolerance=0.99).name == "found"
