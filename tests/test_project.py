"""The project's own promises: one pin, patches that hold call sites only, documents that match the tree."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATCHES = sorted((ROOT / "native" / "patches").glob("*.patch"))
FETCH = ROOT / "native" / "fetch_upstream.py"


def changed_lines(patch: Path, sign: str) -> list[str]:
    lines = patch.read_text().splitlines()
    return [line for line in lines if line.startswith(sign) and not line.startswith(sign * 3)]


def test_pin_and_dependency_are_one_version():
    pin = (ROOT / "native" / "upstream.txt").read_text()
    requirement = re.search(r"^(llama-cpp-python==\S+)", pin, re.MULTILINE)[1]
    assert f'"{requirement}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.name)
def test_patches_hold_call_sites_only(patch):
    assert changed_lines(patch, "-") == []
    added = [line for line in changed_lines(patch, "+") if line[1:].strip()]
    assert len(added) <= 40
    for field in ("Description", "Forwarded", "Last-Update"):
        assert re.search(rf"^{field}: ", patch.read_text(), re.MULTILINE)


def test_native_readme_lists_every_patch_and_hook():
    readme = (ROOT / "native" / "README.md").read_text()
    for patch in PATCHES:
        assert patch.name in readme
        for file in re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE):
            assert Path(file).name in readme


def fetch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FETCH), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_wrong_archive_is_refused(tmp_path):
    archive = tmp_path / "sdist.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(FETCH, "llama_cpp_python-0.3.36/vendor/llama.cpp/x")
    finished = fetch(tmp_path / "out", "--archive", archive)
    assert finished.returncode != 0
    assert "the pin wants" in finished.stderr
    assert fetch(tmp_path / "out", "--archive", tmp_path / "none").stderr.count("VIASD_LLAMA_CPP_ARCHIVE") == 1
