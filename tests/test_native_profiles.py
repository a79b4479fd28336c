"""Profiles of this machine and of others, for a tiny file."""

from __future__ import annotations

import json
import re

import pytest
import tiny_gguf
from click.testing import CliRunner

from viasd_edge.cli import cli
from viasd_edge.costs import Weights
from viasd_edge.errors import ModelError
from viasd_edge.profiles import Profile

pytestmark = pytest.mark.native


@pytest.fixture
def tiny(tmp_path):
    return tiny_gguf.write(tmp_path / "tiny.gguf")


def invoke(*arguments):
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_machine_measured_and_its_trace_replayed(tiny, tmp_path):
    profile, trace = tmp_path / "here.toml", tmp_path / "trace.jsonl"
    invoke("bench", "profile", profile, "-m", tiny, "-md", tiny, "--mask", "layers:1", "-t", 1)
    device = Profile.load(str(profile)).device
    assert {tier: measured.mask for tier, measured in device.items()} == {
        "full": None,
        "draft": None,
        "slim": "attn:1 ffn:1",
    }
    assert not list(tmp_path.glob("*.tmp"))
    options = ("--mode", "exact", "--drafter", "model", "--policy", "fixed")
    invoke("generate", "hello", "-m", tiny, "-md", tiny, "-n", 20, "-c", 96, "--trace", trace, *options)
    measured, modelled = (
        json.loads(invoke("bench", "simulate", "--trace", trace, "--json", "--profile", *there))["predictions"][0]
        for there in ([profile], ["flat", "-m", tiny, "-md", tiny])
    )
    # a drafter as large as its target cannot pay where a pass costs what it reads
    assert 0 < modelled["ratio"] <= 1.0
    assert measured["tokens"] == modelled["tokens"] > 0
    assert [measured["sources"]["full"]["times"], modelled["sources"]["full"]["times"]] == ["measured", "modelled"]
    assert not modelled["sources"]["draft"]["random_weights"]


def test_a_profile_that_cannot_be_written_is_one_line(tiny, tmp_path):
    result = CliRunner().invoke(cli, ["bench", "profile", str(tmp_path / "none" / "here.toml"), "-m", str(tiny)])
    assert result.exit_code == 2
    assert re.fullmatch(r"Error: .*here\.toml: the profile cannot be written: .*\n", result.stderr)


def test_sizes_of_what_is_no_model(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\3\0\0\0" + b"\xff" * 20)
    for path in (tmp_path / "none.gguf", broken):
        with pytest.raises(ModelError, match=path.name):
            Weights.read(path)
