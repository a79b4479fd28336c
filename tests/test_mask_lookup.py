"""Which mask a mode takes when none is named."""

from __future__ import annotations

import logging

import pytest
from masks_written import CALIBRATION, SHIPPED, of, run_cli, write

from viasd_edge import engine, folders
from viasd_edge.engine import Engine, find_mask
from viasd_edge.errors import EdgeError, ModelError
from viasd_edge.model import fingerprint
from viasd_edge.names import default_mask, load_mask, masks_of


def names(masks):
    return [mask.name for mask in masks]


def test_masks_of_a_model_newest_first(mine, caplog):
    write(mine, "old", age=9)
    write(mine, "new", age=1)
    write(mine, "a", age=5)
    write(mine, "other", model={"fingerprint": "beef"})
    write(mine, "any", model=None)
    (mine / "broken.json").write_text("{}")
    (mine / "folder.json").mkdir()
    (mine / "dangling.json").symlink_to("nowhere")
    with caplog.at_level(logging.WARNING, "viasd_edge"):
        assert names(masks_of("f00d")) == ["new", "a", "old"]
    [record] = caplog.records
    assert "broken.json" in record.getMessage()
    assert masks_of("none") == []


def test_the_users_own_come_before_the_pairs_and_the_shipped_ones(mine):
    shipped = load_mask(SHIPPED)
    all_shipped = names(masks_of(shipped.fingerprint))
    assert SHIPPED in all_shipped
    write(mine, "own", model=shipped.to_dict()["model"])
    assert names(masks_of(shipped.fingerprint)) == ["own", *all_shipped]
    others = [name for name in all_shipped if name != SHIPPED]
    assert names(masks_of(shipped.fingerprint, SHIPPED)) == ["own", SHIPPED, *others]


def calibrated(draft, error):
    return [{**CALIBRATION, "draft": draft, "error": error}]


def test_with_a_tolerance_the_first_that_is_calibrated_for_it(mine):
    write(mine, "no-gate", age=1, calibrations=[])
    write(mine, "other-drafter", age=2, calibrations=calibrated("x", 0.01))
    write(mine, "too-bold", age=3, calibrations=calibrated("d", 0.05))
    write(mine, "fits", age=4, calibrations=calibrated("d", 0.01))
    write(mine, "fits-too", age=5, calibrations=calibrated("d", 0.01))

    def found(**options):
        return default_mask(None, "f00d", **options).name

    assert found() == "no-gate"
    assert found(draft="d", tolerance=0.01) == "fits"
    assert found(draft="d", tolerance=0.1) == "too-bold"
    assert found(draft="x", tolerance=0.01) == "other-drafter"
    assert found(draft="d", tolerance=0.001) == "no-gate"  # none: the error names the newest
    assert found(draft=None, tolerance=0.01) == "no-gate"
    assert default_mask(None, "none") is None


def test_the_pairs_mask_takes_over_where_the_users_is_not_calibrated(mine):
    shipped = load_mask(SHIPPED)
    draft = shipped.calibrations[0].draft
    write(mine, "own", model=shipped.to_dict()["model"])
    assert default_mask(SHIPPED, shipped.fingerprint).name == "own"
    assert default_mask(SHIPPED, shipped.fingerprint, draft=draft, tolerance=0.01).name == SHIPPED


@pytest.fixture
def tiny_pair(mine, tmp_path, model_file, monkeypatch):
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(b"GGUF draft")
    monkeypatch.setattr(engine, "requantized", lambda path, _quant: path)
    return ["-m", str(model_file), "-md", str(draft)], fingerprint(draft)


def test_find_mask_is_by_files_alone(mine, tiny_pair, model_file):
    (_, target, _, draft), draft_file = tiny_pair
    assert find_mask(target, draft) is None
    write(mine, "new", age=1, model=of(model_file))
    write(mine, "ready", age=2, model=of(model_file), calibrations=calibrated(draft_file, 0.01))
    assert find_mask(target, draft).name == find_mask(target, None, tolerance=0.1).name == "new"
    assert find_mask(target, draft, tolerance=0.01).name == "ready"
    with pytest.raises(ModelError, match="is a folder"):
        find_mask(str(mine), None)


@pytest.mark.parametrize(("tolerance", "name"), [([], "new"), (["--tolerance", "0.01"], "ready")])
def test_bench_takes_the_mask_of_generate(tiny_pair, model_file, monkeypatch, tolerance, name):
    mine = folders.masks_dir()
    arguments, draft_file = tiny_pair
    write(mine, "new", age=1, model=of(model_file))
    write(mine, "ready", age=2, model=of(model_file), calibrations=calibrated(draft_file, 0.01))
    seen = []

    def opened(settings, *, mask, **_options):
        seen.append((settings.mask, mask and mask.name))
        raise EdgeError("seen")

    monkeypatch.setattr("viasd_edge.bench.Bench", opened)
    for strategy in ("tiered", "self", "exact"):
        run_cli("bench", "--strategy", strategy, *arguments, *tolerance)
    run_cli("bench", "--strategy", "tiered", "--mask", "layers:1", *arguments)
    assert seen == [(name, name), (name, name), (None, None), ("layers:1", "custom")]


def test_profile_takes_the_mask_of_generate_and_calibrate_asks_for_it(
    mine, tiny_pair, model_file, tmp_path, monkeypatch
):
    arguments, _ = tiny_pair
    write(mine, "new", model=of(model_file))
    seen = []

    def opened(_model, *, mode, mask=None, **_options):
        seen.append((mode, mask and mask.name))
        raise EdgeError("seen")

    monkeypatch.setattr(Engine, "open", opened)
    run_cli("bench", "profile", tmp_path / "here.toml", *arguments)
    run_cli("calibrate", *arguments)
    assert seen == [("exact", "new"), ("tiered", None)]  # open itself finds one in tiered mode
