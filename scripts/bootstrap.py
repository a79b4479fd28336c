"""Make `.venv` with the bindings, our package and the models that a script asks for. Standard library only.

Every step is stamped with a digest of what it depends on, so a second run does nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
UPSTREAM = ROOT / "build" / "upstream"
PIN = ROOT / "native" / "upstream.txt"


def ensure(models: Sequence[str] = (), *, extras: str = "") -> None:
    """Set up `.venv` and pull `models`, then go on in it: this process is replaced unless it runs there already."""
    if sys.version_info < (3, 10):
        raise SystemExit(f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}")
    if Path(sys.prefix).resolve() == VENV.resolve():
        return
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")):
        raise SystemExit("a C++ compiler is needed (Debian: apt install g++; macOS: xcode-select --install)")
    _make_venv()
    archive = _sdist()
    _install_bindings(archive)
    _install_package(archive, extras)
    if models:
        run([PYTHON, "-m", "viasd_edge", "models", "pull", *models], stdout=subprocess.DEVNULL)
    _replace_process([str(PYTHON), *sys.argv])


def _make_venv() -> None:
    if PYTHON.exists():
        return
    print("making .venv", file=sys.stderr)
    try:
        venv.create(VENV, with_pip=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(VENV, ignore_errors=True)
        raise SystemExit("no .venv: Python lacks ensurepip (Debian: apt install python3-venv)") from None


def _sdist() -> Path:
    """The pinned sdist, fetched once for the bindings and for our build."""
    # by the venv's Python: a system Python may lack pip
    command = [PYTHON, ROOT / "native" / "fetch_upstream.py", UPSTREAM, "--archive-only"]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode != 0:
        raise SystemExit(finished.returncode)
    return Path(finished.stdout.strip())


def _install_bindings(archive: Path) -> None:
    """llama-cpp-python without a library of its own: the wrong one cannot load, and nothing is built twice."""
    with _Stamp("bindings", [PIN]) as stamp:
        if stamp.fresh:
            return
        print("installing the llama-cpp-python bindings", file=sys.stderr)
        no_library = {"CMAKE_ARGS": "-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF"}
        run([PYTHON, "-m", "pip", "install", *_QUIET, archive], environment=no_library)


def _install_package(archive: Path, extras: str) -> None:
    sources = [ROOT / "pyproject.toml", *sorted((ROOT / "native").rglob("*")), *sorted((ROOT / "models").rglob("*"))]
    with _Stamp("package" + extras, [path for path in sources if path.is_file() and path.suffix != ".pyc"]) as stamp:
        if stamp.fresh:
            return
        print("building and installing viasd-edge (some minutes the first time)", file=sys.stderr)
        environment = {"VIASD_LLAMA_CPP_ARCHIVE": str(archive)}
        run([PYTHON, "-m", "pip", "install", *_QUIET, "--editable", f"{ROOT}{extras}"], environment=environment)


def build_native(folder: Path, target: str, *options: str) -> None:
    """Configure and build one target of native/ in `folder`, by CMake; what it prints goes to stderr."""
    upstream = f"-DVIASD_UPSTREAM_DIR={UPSTREAM}"
    configure = ["cmake", "-S", ROOT / "native", "-B", folder, f"-DPython3_EXECUTABLE={sys.executable}", upstream]
    run([*configure, *options], stdout=sys.stderr.fileno())
    build = ["cmake", "--build", folder, "--config", "Release", "--target", target]
    run([*build, "--parallel", str(os.cpu_count() or 1)], stdout=sys.stderr.fileno())


_QUIET = ("--quiet", "--disable-pip-version-check")


class _Stamp:
    """A file in `.venv` that holds the digest of what a step depended on; written when the step went well."""

    def __init__(self, step: str, depends_on: Sequence[Path]) -> None:
        digest = hashlib.sha256()
        for path in depends_on:
            digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes())
        self._digest = digest.hexdigest()
        self._file = VENV / f"viasd-{step.strip('[]').replace('[', '-')}.stamp"
        self.fresh = self._file.is_file() and self._file.read_text() == self._digest

    def __enter__(self) -> _Stamp:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._file.write_text(self._digest)


def run(command: Sequence[str | Path], *, environment: dict[str, str] | None = None, stdout: int | None = None) -> None:
    finished = subprocess.run(
        [str(part) for part in command], env={**os.environ, **(environment or {})}, stdout=stdout, check=False
    )
    if finished.returncode != 0:
        raise SystemExit(f"failed ({finished.returncode}): {' '.join(str(part) for part in command)}")


def _replace_process(command: list[str]) -> None:
    if os.name == "nt":  # execv there returns to the shell at once
        raise SystemExit(subprocess.run(command, check=False).returncode)
    os.execv(command[0], command)
