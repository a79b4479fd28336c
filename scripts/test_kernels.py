"""Build the kernel test program with address and undefined-behaviour sanitizers and run it.

python3 scripts/test_kernels.py
"""

from __future__ import annotations

import bootstrap

BUILD = bootstrap.ROOT / "build" / "sanitize"
SANITIZERS = [f"-D{library}_SANITIZE_{kind}=ON" for library in ("GGML", "LLAMA") for kind in ("ADDRESS", "UNDEFINED")]
PORTABLE = ["-DGGML_OPENMP=OFF", "-DGGML_NATIVE=OFF"]  # ggml's own threads; run-time dispatch


def main() -> None:
    options = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DVIASD_TESTS=ON", *SANITIZERS, *PORTABLE]
    bootstrap.build_native(BUILD, "test-small-batch", *options)
    bootstrap.run([BUILD / "bin" / "test-small-batch"])


if __name__ == "__main__":
    main()
