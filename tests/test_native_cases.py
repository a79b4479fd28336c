"""Bug reports against other engines (files, vocabularies, caches) as tests on tiny files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tiny_gguf

from viasd_edge.engine import Engine
from viasd_edge.errors import ModelError
from viasd_edge.model import Model

pytestmark = pytest.mark.native


def test_vocabularies_that_differ_in_padding_are_accepted(tmp_path):
    padded = [*tiny_gguf.TOKENS, *(f"[PAD{i}]" for i in range(20))]
    target = tiny_gguf.write(tmp_path / "target.gguf", tokens=padded)
    draft = tiny_gguf.write(tmp_path / "draft.gguf")
    with Engine.open(str(target), draft_model=str(draft), mode="exact", n_ctx=64) as engine:
        assert len(engine.generate("abc", max_tokens=8, raw=True).token_ids) <= 8


# case 5: broken files
def broken_files(folder: Path, whole: Path) -> dict[str, tuple[Path, str]]:
    raw = whole.read_bytes()
    contents = {
        "half": (raw[: len(raw) // 2], "cut short"),
        "nearly whole": (raw[: len(raw) * 999 // 1000], "cut short"),
        "header": (raw[:2000], "ends inside its header"),
        "empty": (b"", "is empty"),
        "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
        "html": (b"\n<!DOCTYPE html><html>", "HTML page"),
        "magic": (b"GGML" + raw[4:100], "not a GGUF file"),
    }
    found = {}
    for name, (content, reason) in contents.items():
        path = folder / f"{name}.gguf"
        path.write_bytes(content)
        found[name] = path, reason
    found["folder"] = folder, "is a folder"
    unknown = tiny_gguf.write(folder / "unknown.gguf").read_bytes().replace(b"llama", b"lamma")
    (folder / "unknown.gguf").write_bytes(unknown)
    found["unknown architecture"] = folder / "unknown.gguf", "'lamma' is unknown"
    split = tiny_gguf.write(folder / "split.gguf", split_part=1)
    found["second part"] = split, "later part of a split model"
    return found


def test_broken_files_each_have_their_reason(tmp_path):
    for name, (path, reason) in broken_files(tmp_path, tiny_gguf.write(tmp_path / "whole.gguf")).items():
        with pytest.raises(ModelError, match=reason) as caught:
            Model(path)
        assert "\n" not in str(caught.value), name


def test_a_broken_file_ends_the_command_in_one_line(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"<html>")
    finished = cli("generate", "-m", tmp_path / "m.gguf", "Hi")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.count("\n") == 1
    missing = cli("generate", "-m", tmp_path / "none.gguf", "Hi")
    assert missing.returncode == 2
    assert "no such file" in missing.stderr


# case 11: a cache that cannot drop its end
def test_recurrent_models_decode_plainly_and_refuse_the_rest(tmp_path):
    path = str(tiny_gguf.write(tmp_path / "mamba.gguf", "mamba"))
    with Engine.open(path, mode="plain", n_ctx=64) as engine:
        assert engine.generate("abc", max_tokens=4, raw=True).full_passes > 0
        assert engine.generate("abc", max_tokens=4, raw=True).full_passes > 0
    for options in ({"mode": "exact"}, {"mode": "tiered", "mask": "layers:1"}):
        with pytest.raises(ModelError, match="cannot drop tokens; use --mode plain"):
            Engine.open(path, draft_model=path, n_ctx=64, **options)


def cli(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "viasd_edge", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
