"""Build the unpatched llama.cpp of our pin with our flags, to compare with; print the folder of its libraries.

    python3 scripts/build_stock.py

Kept in build/stock; a second run only checks that nothing is stale.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "stock"


def main() -> None:
    archive = os.environ.get("VIASD_LLAMA_CPP_ARCHIVE", "")
    configure = ["cmake", "-S", ROOT / "native", "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release", "-DVIASD_STOCK=ON"]
    configure += [f"-DPython3_EXECUTABLE={sys.executable}", f"-DVIASD_UPSTREAM_DIR={ROOT / 'build' / 'upstream'}"]
    configure += [f"-DVIASD_LLAMA_CPP_ARCHIVE={archive}"]
    steps = [
        configure,
        ["cmake", "--build", BUILD, "--config", "Release", "--target", "viasd", "--parallel", str(os.cpu_count() or 1)],
        [
            "cmake",
            "--install",
            BUILD,
            "--config",
            "Release",
            "--component",
            "viasd_edge",
            "--prefix",
            BUILD / "install",
        ],
    ]
    for step in steps:
        if subprocess.run([str(part) for part in step], stdout=sys.stderr, check=False).returncode != 0:
            raise SystemExit(f"failed: {' '.join(str(part) for part in step)}")
    print(BUILD / "install" / "viasd_edge" / "lib")


if __name__ == "__main__":
    main()
