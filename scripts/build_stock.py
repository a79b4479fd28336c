"""Build the unpatched llama.cpp of our pin with our flags, to compare with; print the folder of its libraries.

    python3 scripts/build_stock.py

Kept in build/stock; a second run only checks that nothing is stale.
"""

from __future__ import annotations

import sys

import bootstrap

BUILD = bootstrap.ROOT / "build" / "stock"


def main() -> None:
    bootstrap.build_native(BUILD, "viasd", "-DCMAKE_BUILD_TYPE=Release", "-DVIASD_STOCK=ON")
    install = ["cmake", "--install", BUILD, "--config", "Release", "--component", "viasd_edge"]
    bootstrap.run([*install, "--prefix", BUILD / "install"], stdout=sys.stderr.fileno())
    print(BUILD / "install" / "viasd_edge" / "lib")


if __name__ == "__main__":
    main()
