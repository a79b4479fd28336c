"""Build the unpatched llama.cpp of our pin with our flags, to compare with; print the folder of its libraries.

    python3 scripts/build_stock.py [--peer]

With `--peer` llama.cpp's own speculative example lies in that folder, too; stderr says where. Kept in build/stock; a
second run only checks that nothing is stale.
"""

from __future__ import annotations

import argparse
import os
import sys

import bootstrap

BUILD = bootstrap.ROOT / "build" / "stock"
LIBRARIES = BUILD / "install" / "viasd_edge" / "lib"
PEER = LIBRARIES / ("llama-speculative-simple.exe" if os.name == "nt" else "llama-speculative-simple")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="store_true", help="build llama.cpp's speculative example, too")
    peer = parser.parse_args().peer
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DVIASD_STOCK=ON", *(["-DVIASD_PEER=ON"] if peer else [])]
    bootstrap.build_native(BUILD, "viasd", *options)
    install = ["cmake", "--install", BUILD, "--config", "Release", "--component", "viasd_edge"]
    bootstrap.run([*install, "--prefix", BUILD / "install"], stdout=sys.stderr.fileno())
    print(LIBRARIES)
    if peer:
        print(f"peer: {PEER}", file=sys.stderr)


if __name__ == "__main__":
    main()
