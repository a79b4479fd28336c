"""Fixtures of the three rings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from masks_written import FakeModel

from viasd_edge import folders, registry
from viasd_edge.stock import PEER

MODELS = folders.models_dir()  # before tests move the user's folder


def pytest_report_header() -> list[str]:
    from viasd_edge._native import native
    from viasd_edge.errors import NativeLibraryError

    try:
        library = native()
    except NativeLibraryError as error:
        return [f"native library: {error}"]
    return [f"native library: {library.folder}", f"built for: {library.system_info()}"]


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one test measured or requantised, the next may use."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's files."""
    monkeypatch.setenv("VIASD_EDGE_CACHE", str(cache_folder))
    monkeypatch.setenv("VIASD_EDGE_MASKS", str(tmp_path / "user-masks"))
    folder = tmp_path / "user-models"
    monkeypatch.setenv("VIASD_EDGE_MODELS", str(folder))
    return folder


@pytest.fixture
def mine(user_folder: Path) -> Path:  # it moves the folder
    """The user's folder of masks."""
    folder = folders.masks_dir()
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file that opens without a library."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF tiny")
    monkeypatch.setattr("viasd_edge.model.Model", FakeModel)
    return path


@pytest.fixture(scope="session")
def pulled() -> dict[str, Path]:
    """Paths of the registry's models; a missing one fails, it does not skip."""
    paths = {name: MODELS / model.file for name, model in registry.registry().models.items()}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing:
        pytest.fail(f"not pulled: run `viasd-edge models pull {' '.join(missing)}`")
    return paths


@pytest.fixture(scope="session")
def stock_library() -> Path:
    """Folder of the unpatched library."""
    folder = os.environ.get("VIASD_STOCK_LIB")
    if not folder:
        pytest.fail("VIASD_STOCK_LIB is not set: run scripts/test.py, or scripts/build_stock.py and set what it prints")
    return Path(folder)


@pytest.fixture(scope="session")
def peer_library(stock_library: Path) -> Path:
    """Folder of the unpatched library with llama.cpp's speculative example in it."""
    if not (stock_library / PEER).is_file():
        pytest.fail(f"no {PEER} in {stock_library}: run scripts/test.py, or scripts/build_stock.py --peer")
    return stock_library


@pytest.fixture
def our_kernels() -> None:
    """Upstream's promise less."""
    from viasd_edge._native import native

    if native().kernel_name() == "none":
        pytest.skip("this machine runs upstream's kernels")


@pytest.fixture
def prompt() -> list[int]:
    return [3, 1, 4, 1, 5, 9]
