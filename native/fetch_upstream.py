"""Lay out the pinned llama.cpp, patched, for CMake; print the folder it lies in.

    python native/fetch_upstream.py OUT [--archive FILE] [--stock | --archive-only]

The tree is always fresh: its folder is named by the digest of pin and patches, is filled beside its final
place and renamed when every patch is in and verified, so no half-patched tree can be built. `--stock` leaves
the patches out; `--archive-only` prints where the sdist lies and unpacks nothing. Needs pip (download) and
patch-ng (patches without git or patch(1), Windows too).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
PIN = NATIVE / "upstream.txt"
VENDOR = "vendor/llama.cpp"


def patches() -> list[Path]:
    """The patch files in the order they are applied."""
    return sorted((NATIVE / "patches").glob("*.patch"))


def read_pin() -> tuple[str, str]:
    """(requirement, sha256) of upstream.txt."""
    found = re.search(r"^(\S+==\S+) --hash=sha256:([0-9a-f]{64})$", PIN.read_text(), re.MULTILINE)
    if not found:
        raise SystemExit(f"fetch_upstream: {PIN} does not hold one line `name==version --hash=sha256:...`")
    return found[1], found[2]


def find_archive(downloads: Path, archive: str | None) -> Path:
    """The sdist: `archive`, else an earlier download, else pip's; its hash is checked in every case."""
    requirement, sha256 = read_pin()
    if archive:
        path = Path(archive)
        if not path.is_file():
            raise SystemExit(f"fetch_upstream: VIASD_LLAMA_CPP_ARCHIVE names {path}, which is not a file")
    else:
        path = downloads / (requirement.replace("==", "-").replace("llama-cpp-python", "llama_cpp_python") + ".tar.gz")
        if not path.is_file():
            download(downloads)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != sha256:
        raise SystemExit(f"fetch_upstream: {path} has sha256 {digest}, the pin wants {sha256}: fetch it again")
    return path


def download(folder: Path) -> None:
    """pip-download the pinned sdist; only it, its build tools may come as wheels."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "llama-cpp-python", "--require-hashes", "-r", str(PIN), "-d", str(folder)]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise SystemExit(
            f"fetch_upstream: pip could not download {read_pin()[0]}. Mend pip's access to its package index "
            "(pip config list), or set VIASD_LLAMA_CPP_ARCHIVE to a copy of the sdist."
        )


def apply(patch: Path, tree: Path) -> None:
    """Apply one patch and verify that each line it adds is in the file it names."""
    import patch_ng

    patch_set = patch_ng.fromfile(str(patch))
    if not patch_set or not patch_set.apply(strip=1, root=str(tree), fuzz=False):
        raise SystemExit(f"fetch_upstream: {patch.name} does not apply to {read_pin()[0]}; see native/README.md")
    for item in patch_set.items:
        text = (tree / item.target.decode().removeprefix("b/")).read_bytes()
        for hunk in item.hunks:
            for line in hunk.text:
                if line.startswith(b"+") and line[1:].strip() not in text:
                    raise SystemExit(f"fetch_upstream: {patch.name}: a hook is missing after applying: {line!r}")


def lay_out(out: Path, archive: str | None, stock: bool) -> Path:
    """The folder of the laid-out tree, made if it is not there yet."""
    used = [] if stock else patches()
    digest = hashlib.sha256(b"".join([PIN.read_bytes(), *(path.read_bytes() for path in used)])).hexdigest()[:12]
    tree = out / f"llama.cpp-{digest}"
    if tree.is_dir():
        return tree
    source = find_archive(out, archive)
    with tempfile.TemporaryDirectory(dir=out, prefix="unpack-") as scratch:
        with tarfile.open(source) as tar:
            prefix = tar.next().name.split("/")[0]  # type: ignore[union-attr]  # the archive is not empty: hash checked
            wanted = f"{prefix}/{VENDOR}/"
            members = [member for member in tar.getmembers() if member.name.startswith(wanted)]
            kwargs = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(scratch, members, **kwargs)  # type: ignore[arg-type]
        fresh = Path(scratch, wanted)
        for patch in used:
            apply(patch, fresh)
        for path in fresh.rglob("*.[ch]*"):  # the archive's times are from 2022: make would see nothing to do
            os.utime(path)
        shutil.move(str(fresh), tree)
    return tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--archive", default=os.environ.get("VIASD_LLAMA_CPP_ARCHIVE"))
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--archive-only", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.archive_only:
        print(find_archive(arguments.out.resolve(), arguments.archive or None))
        return
    print(lay_out(arguments.out.resolve(), arguments.archive or None, arguments.stock).as_posix())


if __name__ == "__main__":
    main()
