"""Build the kernel test program with address and undefined-behaviour sanitizers and run it.

python3 scripts/test_kernels.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "sanitize"
SANITIZERS = [f"-D{library}_SANITIZE_{kind}=ON" for library in ("GGML", "LLAMA") for kind in ("ADDRESS", "UNDEFINED")]


def main() -> None:
    configure = ["cmake", "-S", ROOT / "native", "-B", BUILD, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DVIASD_TESTS=ON"]
    configure += [f"-DPython3_EXECUTABLE={sys.executable}", f"-DVIASD_UPSTREAM_DIR={ROOT / 'build' / 'upstream'}"]
    configure += [*SANITIZERS, "-DGGML_OPENMP=OFF", "-DGGML_NATIVE=OFF"]  # ggml's own threads; run-time dispatch
    build = ["cmake", "--build", BUILD, "--target", "test-small-batch", "--parallel", str(os.cpu_count() or 1)]
    for command in (configure, build, [BUILD / "bin" / "test-small-batch"]):
        finished = subprocess.run([str(part) for part in command], check=False)
        if finished.returncode != 0:
            raise SystemExit(f"failed: {' '.join(str(part) for part in command)}")


if __name__ == "__main__":
    main()
