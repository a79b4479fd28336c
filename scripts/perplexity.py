"""Perplexity of a text under our library and under stock llama.cpp: what the kernels' rounding costs.

    export VIASD_STOCK_LIB=$(python3 scripts/build_stock.py)
    .venv/bin/python scripts/perplexity.py TEXT [--model NAME] [--bytes 20000] [--width 16]

The text is evaluated in windows of 512 tokens, `--width` tokens a pass, so that the small-batch kernels do the work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from viasd_edge.model import Model
from viasd_edge.registry import resolve
from viasd_edge.runner import Runner

WINDOW = 512


def perplexity(model: str, text: str, width: int) -> float:
    """exp of the mean negative log-likelihood of each token but the first of every window."""
    losses: list[np.ndarray] = []
    with Model(resolve(model)) as weights, Runner(weights, n_ctx=WINDOW) as runner:
        tokens = weights.tokenize(text, special=False)
        for start in range(0, len(tokens) - 1, WINDOW):
            window = tokens[start : start + WINDOW]
            runner.rewind(0)
            for at in range(0, len(window) - 1, width):
                logits = runner.decode(window[at : at + width]).astype(np.float64)
                following = window[at + 1 : at + 1 + width]
                logits = logits[: len(following)]
                peak = logits.max(axis=-1)
                total = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=-1))
                losses.append(total - logits[np.arange(len(following)), following])
    return float(np.exp(np.concatenate(losses).mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--bytes", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--one", action="store_true", help="this process's library only, a bare number")
    arguments = parser.parse_args()
    text = arguments.text.read_bytes()[: arguments.bytes].decode("utf-8", errors="ignore")
    ours = perplexity(arguments.model, text, arguments.width)
    if arguments.one:
        print(ours)
        return
    environment = {**os.environ, "VIASD_EDGE_LIB": os.environ["VIASD_STOCK_LIB"], "VIASD_EDGE_STOCK": "1"}
    command = [sys.executable, *sys.argv, "--one"]
    stock = float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
    print(json.dumps({"ours": ours, "stock": stock, "ratio": ours / stock}))


if __name__ == "__main__":
    main()
