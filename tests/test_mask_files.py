"""Mask files: what is refused, how they are found, listed, carried and compared."""

from __future__ import annotations

import copy
import json

import pytest
from masks_written import GOOD, SHIPPED, of, run_cli, write

from viasd_edge import folders
from viasd_edge.errors import EdgeError, MaskError
from viasd_edge.mask import Calibration, LayerMask
from viasd_edge.model import fingerprint
from viasd_edge.names import own_mask_path
from viasd_edge.registry import shipped


def changed(*path_and_value):
    """GOOD but for the value at a path; without a value to set, the field is missing."""
    *path, key, value = path_and_value
    table = copy.deepcopy(GOOD)
    at = table
    for step in path:
        at = at[step]
    if value is MISSING:
        del at[key]
    else:
        at[key] = value
    return json.dumps(table)


MISSING = object()
CALIBRATED = ("calibrations", 0)
WRONG_TYPES = {
    ("model",): ["m", 1, []],
    ("model", "name"): [1, [], {}],
    ("model", "fingerprint"): [1, True, {}],
    ("model", "layers"): ["4", 4.0, True],
    ("skip_attention",): ["1", 1, {}, None],
    ("skip_ffn",): ["1", 1, {}, None],
    ("method",): [1, [], {}],
    ("device",): [1, {}],
    ("created",): [2026, {}],
    ("scores",): ["high", 0.9, []],
    ("calibrations",): ["all", {"error": 0.1}],
    CALIBRATED: ["x", None, [1]],
    (*CALIBRATED, "draft"): [1, None],
    (*CALIBRATED, "error"): ["0.01", None, True],
    (*CALIBRATED, "gate"): [1, None],
    (*CALIBRATED, "keep_kv"): [1, "yes", None],
    (*CALIBRATED, "measured"): [[], 1],
}
BAD = {
    **{f"{path[-1]} is {value!r}": changed(*path, value) for path, values in WRONG_TYPES.items() for value in values},
    **{
        f"no {path[-1]}": changed(*path, MISSING)
        for path in [
            *(("format",), ("skip_attention",), ("skip_ffn",)),
            *((*CALIBRATED, key) for key in ("draft", "error", "gate", "keep_kv")),
        ]
    },
    **{
        f"layers {layers}": changed("skip_ffn", layers)
        for layers in ([-1], [1, 1], [1.0], ["1"], [True], [None], [[1]], [4], [10_000], [10**30])
    },
    **{f"model of {n} layers": changed("model", "layers", n) for n in (0, -1, 2, 10_001)},
    **{f"format {value}": changed("format", value) for value in (0, 2, "1", None, [1])},
    **{
        f"gate {gate}": changed(*CALIBRATED, "gate", gate)
        for gate in ("", "magic", "chow:alpha=x", "chow:alpha=nan", "chow:beta=1", "ratio:accept=0.1,escalate=0.9")
    },
    **{f"error {error}": changed(*CALIBRATED, "error", error) for error in (0, 1, -0.1, 7)},
    **{f"created {text}": changed("created", text) for text in ("yesterday", "", "2026-13-01", "30.11.2026")},
    **{
        f"{number} as a score": json.dumps(GOOD).replace("0.9", number)
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 30, "9" * 5000)
    },
    **{
        f"{text!a} in {path[-1]}": changed(*path, text)
        for path in [("model", "name"), ("model", "fingerprint"), ("method",), ("device",), ("scores", "note")]
        for text in ("two\nlines", "\x1b[31m", "\ud800", "\0")
    },
    "a key that breaks the line": changed("scores", "two\nlines", 1),
    "skips nothing": changed("skip_ffn", []).replace("[1]", "[]"),
    "every attention block": changed("skip_attention", [0, 1, 2, 3]),
    "deep": changed("scores", "x", json.loads("[" * 40 + "]" * 40)),
    "too deep to read": "[" * 100_000,
    "cut": json.dumps(GOOD)[:-20],
    "two": json.dumps(GOOD) * 2,
    **{f"only {text}": text for text in ("", "null", "1", '"mask"', "[]", "{}", "\0", "{'format': 1}")},
}


def refused(*arguments, **options):
    """The one line of a command that ends with exit code 2."""
    result = run_cli(*arguments, **options)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    [line] = [line for line in result.stderr.splitlines() if not line.startswith(("Usage:", "Try ")) and line]
    assert line.startswith("Error: ")
    return line


def test_a_good_file_keeps_all_it_says(tmp_path):
    path = tmp_path / "good.json"
    path.write_text(json.dumps(GOOD))
    mask = LayerMask.load(path)
    assert mask.to_dict() == GOOD
    mask.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == GOOD


@pytest.mark.parametrize("key", ["model", "method", "device", "created", "scores", "calibrations"])
@pytest.mark.parametrize("value", [MISSING, None], ids=["missing", "null"])
def test_what_older_files_lack_may_be_missing(tmp_path, key, value):
    path = tmp_path / "old.json"
    path.write_text(changed(key, value))
    found = LayerMask.load(path)
    assert (found.attention, found.ffn, found.name) == ((1,), (1, 2), "old")
    kept = {**GOOD, key: None}
    assert {name: value for name, value in found.to_dict().items() if name != key} == {
        name: value for name, value in kept.items() if name != key
    }


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_every_kind_of_bad_file_is_one_line(tmp_path, mine, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    line = refused("masks", "import", path)
    assert "bad" in line
    assert len(line) < 300
    assert line == refused("masks", "show", path)
    assert not list(mine.iterdir())


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"\x80"])
def test_bytes_that_are_no_text(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    assert "cannot be read" in refused("masks", "import", path)
    assert "cannot be read" in refused("masks", "import", "-", "--name", "x", input=content)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a\\b", "/x", ".hidden", "-x", "x ", "x.", "a:b", "a\nb", "x" * 101, "\ud800"],
)
def test_a_name_that_is_no_plain_file_name(tmp_path, name):
    with pytest.raises(MaskError, match="cannot name a mask"):
        own_mask_path(name)
    path = tmp_path / "good.json"
    path.write_text(json.dumps(GOOD))
    assert "cannot name a mask" in refused("masks", "import", path, f"--name={name}")
    assert "cannot name a mask" in refused("calibrate", f"--name={name}")


@pytest.mark.parametrize("name", ["m", SHIPPED, "My mask 2", "größer", "a_b-c.d+e", "x" * 100])
def test_plain_names(name):
    assert own_mask_path(name) == folders.masks_dir() / f"{name}.json"


def test_a_mask_goes_out_and_comes_in(tmp_path):
    out = tmp_path / "out.json"
    assert run_cli("masks", "export", SHIPPED, out).exit_code == 0
    assert run_cli("masks", "export", SHIPPED, "-").stdout == out.read_text()
    assert run_cli("masks", "import", out).exit_code == 0
    assert run_cli("masks", "import", "-", "--name", "piped", input=out.read_text()).exit_code == 0
    files = sorted(path.name for path in folders.masks_dir().iterdir())
    assert files == ["out.json", "piped.json"]
    assert all((folders.masks_dir() / name).read_text() == out.read_text() for name in files)


def test_a_mask_is_not_overwritten_unless_forced(tmp_path, mine):
    before = write(mine, "m").read_text()
    other = write(tmp_path, "m", method="swift")
    assert "--force" in refused("masks", "import", other)
    assert (mine / "m.json").read_text() == before
    assert run_cli("masks", "import", other, "--force").exit_code == 0
    assert LayerMask.load(mine / "m.json").method == "swift"
    (tmp_path / "bad.json").write_text("{}")
    refused("masks", "import", tmp_path / "bad.json", "--name", "m", "--force")
    assert LayerMask.load(mine / "m.json").method == "swift"


def test_import_and_export_say_what_is_wrong_with_their_files(tmp_path):
    assert "--name" in refused("masks", "import", "-", input=json.dumps(GOOD))
    assert "none.json" in refused("masks", "import", tmp_path / "none.json")
    assert "cannot be written" in refused("masks", "export", SHIPPED, tmp_path / "none" / "m.json")
    assert "no mask of that name" in refused("masks", "export", "nothing", "-")
    assert not (tmp_path / "none").exists()


def test_a_masks_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VIASD_EDGE_MASKS", str(tmp_path / "file" / "masks"))
    result = run_cli("masks", "import", write(tmp_path, "m"))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "cannot be saved" in result.stderr
    with pytest.raises(EdgeError):
        LayerMask.parse("layers:1").save(tmp_path / "file" / "m.json")


def test_import_checks_a_mask_against_a_model(tmp_path, mine, model_file):
    other = write(tmp_path, "other")
    beyond = write(tmp_path, "beyond", skip_ffn=[7], model=of(model_file))
    unbound = write(tmp_path, "unbound", model=None)
    assert "found for m" in refused("masks", "import", other, "-m", model_file)
    assert "layers 0-3" in refused("masks", "import", beyond, "-m", model_file)
    assert "no such file" in refused("masks", "import", unbound, "-m", tmp_path / "none.gguf")
    assert "models pull" in refused("masks", "import", unbound, "-m", "smollm2-135m")
    assert not list(mine.iterdir())
    assert run_cli("masks", "import", unbound, "-m", model_file).exit_code == 0
    found = LayerMask.load(mine / "unbound.json")
    assert (found.fingerprint, found.model, found.n_layer) == (fingerprint(model_file), "tiny", 4)


def test_list(mine, model_file):
    write(mine, SHIPPED, scores={"agreement": 0.5})
    write(mine, "of-model", model=of(model_file), method="[red]dimr[/]: all of it")
    write(mine, "any", model=None, calibrations=[])
    (mine / "broken.json").write_text("{}")
    result = run_cli("masks", "--json")
    assert result.stderr.count("\n") == 1
    assert "broken.json" in result.stderr
    entries = json.loads(result.stdout)["masks"]
    found = [(entry["name"], entry["origin"]) for entry in entries]
    assert [name for name, origin in found if origin == "yours"] == ["any", "of-model", SHIPPED]
    assert found.index((SHIPPED, "shipped")) == found.index((SHIPPED, "yours")) + 1
    assert {name for name, origin in found if origin == "shipped"} == {path.stem for path in shipped("masks").iterdir()}
    assert [entry["share"] for entry in entries if entry["origin"] == "yours"] == [None, None, 3 / 8]
    fitting = json.loads(run_cli("masks", "list", "-m", model_file, "--json").stdout)["masks"]
    assert [entry["name"] for entry in fitting] == ["any", "of-model"]
    shown = run_cli("masks", "list").stdout
    for text in ("of-model", "[red]dimr[/]", "attn:1 ffn:1-2", "37.5%", "agreement 0.5", "0.01", "yours", "shipped"):
        assert text in shown
    assert "models pull" in refused("masks", "list", "-m", "qwen2.5-coder")


def test_show_is_in_full(tmp_path):
    path = write(tmp_path, "m")
    shown = run_cli("masks", "show", path).stdout
    for text in (
        *("m: attn:1 ffn:1-2", "f00d", "37.5% of 4 layers", "dimr", "a machine, 2 cores", "2026-11-30", "0.9"),
        *('{"a": [1, null, true]}', "0.0100", "chow:alpha=0.1", "keep", "tokens"),
    ):
        assert text in shown
    assert json.loads(run_cli("masks", "show", path, "--json").stdout) == {
        **GOOD,
        "name": "m",
        "text": "attn:1 ffn:1-2",
        "share": 0.375,
    }
    assert "MASK" in refused("masks", "show")


def test_a_score_hides_nothing(tmp_path):
    path = write(tmp_path, "m", scores={"model": "no", "method": 1})
    assert "f00d" in run_cli("masks", "show", path).stdout
    assert "dimr" in run_cli("masks", "show", path).stdout


def test_compare(tmp_path):
    path = write(tmp_path, "m")
    answer = json.loads(run_cli("masks", "compare", path, "attn:1-2 ffn:3", "ffn:1-2 attn:1", "--json").stdout)
    assert answer["layers"] == 4
    assert [entry["map"] for entry in answer["masks"]] == [".#f.", ".aaf", ".#f."]
    assert [entry["overlap"] for entry in answer["masks"]] == [1.0, 0.2, 1.0]
    assert [entry["share"] for entry in answer["masks"]] == [0.375] * 3
    assert answer["masks"][0]["scores"] == GOOD["scores"]
    shown = run_cli("masks", "compare", path, "attn:1-2 ffn:3").stdout
    for text in (".#f.", ".aaf", "0.20", "37.5%", "agreement 0.9"):
        assert text in shown


def test_compare_without_a_model_reaches_as_far_as_the_masks():
    answer = json.loads(run_cli("masks", "compare", "layers:1", "attn:11", "--json").stdout)
    assert answer["layers"] is None
    assert [entry["map"] for entry in answer["masks"]] == [".#" + "." * 10, "." * 11 + "a"]
    assert [(entry["overlap"], entry["share"]) for entry in answer["masks"]] == [(1.0, None), (0.0, None)]


def test_compare_refuses_masks_of_different_models(tmp_path):
    path = write(tmp_path, "m")
    line = refused("masks", "compare", "layers:1", path, SHIPPED)
    assert "masks of one model" in line
    assert "layers:9" in refused("masks", "compare", path, "layers:9")
    assert "at least two" in refused("masks", "compare", path)
    assert "MASK" in refused("masks", "compare")


def test_a_mask_is_bound_to_the_model_it_fits():
    mask = LayerMask.parse("layers:1").bound(fingerprint="f00d", model="m", n_layer=4)
    assert mask.to_dict()["model"] == {"name": "m", "fingerprint": "f00d", "layers": 4}
    assert mask.is_calibrated("d", 0.1) is False
    gate = Calibration("d", 0.05, "chow:alpha=0.1", keep_kv=True)
    assert mask.with_calibration(gate).is_calibrated("d", 0.1)
    for wrong in ({"fingerprint": "beef", "n_layer": 4}, {"fingerprint": "f00d", "n_layer": 1}):
        with pytest.raises(MaskError):
            mask.bound(model="m", **wrong)
