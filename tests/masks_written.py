"""Mask files that tests write, and a model file that needs no library."""

from __future__ import annotations

import json
import os

from click.testing import CliRunner, Result

from viasd_edge.cli import cli
from viasd_edge.model import fingerprint

SHIPPED = "qwen2.5-coder-1.5b-hand-picked"
CALIBRATION = {"draft": "d", "error": 0.01, "gate": "chow:alpha=0.1", "keep_kv": True, "measured": {"tokens": 9}}
GOOD = {
    "format": 1,
    "model": {"name": "m", "fingerprint": "f00d", "layers": 4},
    "skip_attention": [1],
    "skip_ffn": [1, 2],
    "method": "dimr",
    "device": "a machine, 2 cores",
    "created": "2026-11-30",
    "scores": {"agreement": 0.9, "nested": {"a": [1, None, True]}},
    "calibrations": [CALIBRATION],
}


def write(folder, name, age=0, **fields):
    """A mask of f00d that is so many seconds old."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**GOOD, **fields}))
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def of(model, **fields):
    """The model of a mask, by its file."""
    return {"name": "m", "fingerprint": fingerprint(model), "layers": None, **fields}


def run_cli(*arguments, **options) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], **options)


class FakeModel:
    """A model file that opens without a library."""

    n_layer = 4

    def __init__(self, path):
        self.path, self.fingerprint = path, fingerprint(path)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        pass
