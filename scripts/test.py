"""Set everything up and run the whole test suite; arguments go to pytest.

python3 scripts/test.py            all three rings, linters included
python3 scripts/test.py -m "not native and not model"
"""

from __future__ import annotations

import os
import subprocess
import sys

import bootstrap

MODELS = ("smollm2-135m", "gemma-3-270m", "qwen2.5-coder")


def main() -> None:
    bootstrap.ensure(MODELS, extras="[test]")
    python = [sys.executable, "-m"]
    build_stock = [sys.executable, bootstrap.ROOT / "scripts" / "build_stock.py", "--peer"]
    stock = subprocess.run(build_stock, stdout=subprocess.PIPE, check=True)
    os.environ["VIASD_STOCK_LIB"] = stock.stdout.decode().strip()
    checks = [
        [*python, "ruff", "check"],
        [*python, "ruff", "format", "--check"],
        [*python, "mypy"],
        [sys.executable, "scripts/test_kernels.py"],
        [*python, "pytest", *sys.argv[1:]],
    ]
    failed = [check for check in checks if subprocess.run(check, cwd=bootstrap.ROOT, check=False).returncode != 0]
    for check in failed:
        print("FAILED:", *check[1:], file=sys.stderr)
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
