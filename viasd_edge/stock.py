"""Stock llama.cpp to compare with: the unpatched library of our pin, and its own speculative example.

The library works in a process of its own, since a process can load only one. A process has one role and answers
JSON lines: `{"load_s": ...}` when it is ready, then one answer for each line of keyword arguments.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viasd_edge import errors
from viasd_edge.closing import Closing
from viasd_edge.errors import EdgeError, NativeLibraryError
from viasd_edge.machine import peak_rss
from viasd_edge.runner import default_threads

PEER = "llama-speculative-simple.exe" if os.name == "nt" else "llama-speculative-simple"


class StockProcess(Closing):
    """The unpatched library in `folder`, at work on the model at `path` in a process of its own."""

    def __init__(self, role: str, path: Path, folder: Path, **settings: Any) -> None:
        super().__init__()
        environment = {**os.environ, "VIASD_EDGE_LIB": str(folder), "VIASD_EDGE_STOCK": "1"}
        command = [sys.executable, "-m", "viasd_edge.stock", role, str(path), json.dumps(settings)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        with ExitStack() as opened:
            opened.callback(self._stop)
            self.load_seconds = float(self._answer()["load_s"])
            self._closing = opened.pop_all()

    def _ask(self, **arguments: Any) -> Any:
        """The worker's answer. Raises what it raised, NativeLibraryError if the process is no more."""
        assert self._process.stdin is not None  # noqa: S101  # opened with a pipe
        with suppress(OSError):  # a broken pipe: the missing answer tells
            self._process.stdin.write(json.dumps(arguments) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None  # noqa: S101  # opened with a pipe
        line = self._process.stdout.readline()
        if not line:
            raise NativeLibraryError("the stock library's process ended; scripts/build_stock.py builds it anew")
        answer = json.loads(line)
        if "error" in answer:
            raise getattr(errors, answer["kind"])(f"stock llama.cpp: {answer['error']}")
        return answer

    def _stop(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what a dead process did not read
                pipe.close()  # type: ignore[union-attr]  # opened with pipes
        self._process.wait()


class StockMeter(StockProcess):
    """What `costs.RunnerMeter` is, by the stock library."""

    def __init__(self, path: Path, folder: Path, *, n_threads: int | None) -> None:
        super().__init__("meter", path, folder, n_threads=n_threads)

    def measure(self, n: int) -> float:
        return float(self._ask(n=n)["seconds"])


@dataclass(frozen=True)
class StockGeneration:
    """Tokens of plain decoding, without the one that ended it, and what they cost."""

    token_ids: list[int]
    prompt_ms: float
    predicted_ms: float
    peak_rss_bytes: int  # of the process, up to now


class StockDecoder(StockProcess):
    """Plain greedy decoding by the stock library: our Engine in plain mode, its loop and its clock."""

    def __init__(self, path: Path, folder: Path, *, n_ctx: int, n_threads: int | None) -> None:
        super().__init__("decoder", path, folder, n_ctx=n_ctx, n_threads=n_threads)

    def generate(self, prompt: Sequence[int], *, max_tokens: int) -> StockGeneration:
        """Decode at most `max_tokens` after the token ids of a prompt. Raises PromptError as Engine does."""
        return StockGeneration(**self._ask(prompt=list(prompt), max_tokens=max_tokens))


@dataclass(frozen=True)
class SpeculativeReport:
    """What llama.cpp's speculative example says of one prompt; the time is of decoding alone."""

    prompt_n: int
    predicted_n: int  # it counts the token that ends the answer, and may go beyond what was asked
    predicted_ms: float
    drafted: int
    accepted: int

    @property
    def predicted_per_second(self) -> float:
        return self.predicted_n / self.predicted_ms * 1e3

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that stood."""
        return self.accepted / self.drafted if self.drafted else None

    @classmethod
    def parse(cls, log: str) -> SpeculativeReport:
        """Read it from what the program prints on stderr. Raises NativeLibraryError if anything is missing."""
        encoded = re.search(r"encoded +(\d+) tokens in", log)
        decoded = re.search(r"decoded +(\d+) tokens in +(\d+\.\d+) seconds", log)
        drafted = re.search(r"n_drafted += +(\d+)", log)
        accepted = re.search(r"n_accept += +(\d+)", log)
        if not (encoded and decoded and drafted and accepted) or not float(decoded[2]):
            raise NativeLibraryError(
                f"{PEER} printed no counts that we know; scripts/build_stock.py --peer builds ours"
            )
        return cls(int(encoded[1]), int(decoded[1]), float(decoded[2]) * 1e3, int(drafted[1]), int(accepted[1]))


class StockSpeculative:
    """llama.cpp's own speculative decoding, its example program with its defaults, started anew for each prompt."""

    def __init__(self, target: Path, draft: Path, folder: Path, *, n_ctx: int, n_threads: int | None) -> None:
        self._program = folder / PEER
        if not self._program.is_file():
            raise NativeLibraryError(f"{self._program}: no such program; scripts/build_stock.py --peer builds it")
        # without a type it would load the drafter and not use it
        self._options = ["-m", target, "-md", draft, "--spec-type", "draft-simple", "-c", n_ctx, "--temp", 0]
        self._options += ["-t", n_threads or default_threads(), "-ngl", 0, "-ngld", 0, "--no-escape"]

    def generate(self, prompt: str, *, max_tokens: int) -> SpeculativeReport:
        """Decode about `max_tokens` after a prompt as `Engine.prompt_text` gives it. Raises NativeLibraryError.

        The program puts the model's own begin-of-text token before it, even if it is written there already: take it
        out, and compare `prompt_n` with the length of `Engine.prompt_tokens`.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_ARG_")}
        with tempfile.TemporaryDirectory(prefix="viasd-edge-") as scratch:
            file = Path(scratch, "prompt.txt")
            file.write_bytes(prompt.encode())
            # not -f, which drops the template's last line break
            parts = [self._program, *self._options, "-n", max_tokens, "--binary-file", file]
            command = [str(part) for part in parts]
            finished = subprocess.run(command, env=environment, capture_output=True, check=False)
        log = finished.stderr.decode(errors="replace")
        if finished.returncode != 0:
            said = [line.strip() for line in log.splitlines() if line.strip()]
            reason = said[-1] if said else "no reason given"
            raise NativeLibraryError(f"{PEER} left with {finished.returncode}: {reason}")
        return SpeculativeReport.parse(log)


class _Meter(Closing):
    """The worker of StockMeter."""

    def __init__(self, path: Path, *, n_threads: int | None) -> None:
        from viasd_edge.costs import opened

        super().__init__()
        self._meter, self.load_seconds = self._closing.enter_context(opened(path, n_threads=n_threads))

    def __call__(self, *, n: int) -> dict[str, Any]:
        return {"seconds": self._meter.measure(n)}


class _Decoder(Closing):
    """The worker of StockDecoder."""

    def __init__(self, path: Path, *, n_ctx: int, n_threads: int | None) -> None:
        from viasd_edge.engine import Engine

        super().__init__()
        started = time.perf_counter()
        engine = Engine.open(str(path), mode="plain", n_ctx=n_ctx, n_threads=n_threads)
        self._engine = self._closing.enter_context(engine)
        self.load_seconds = time.perf_counter() - started

    def __call__(self, *, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        generation = self._engine.generate(prompt, max_tokens=max_tokens)
        times = {key: generation.timings[key] for key in ("prompt_ms", "predicted_ms")}
        return {"token_ids": generation.token_ids, **times, "peak_rss_bytes": peak_rss()}


_WORKERS = {"meter": _Meter, "decoder": _Decoder}  # their imports are their own: those modules may import this one


def _serve(role: str, path: str, settings: str) -> None:
    """The process: see the head of this module."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the other ends this one
    with _reported(), _WORKERS[role](Path(path), **json.loads(settings)) as worker:
        _print({"load_s": worker.load_seconds})
        for line in sys.stdin:
            with _reported():
                _print(worker(**json.loads(line)))


@contextmanager
def _reported() -> Iterator[None]:
    """Answer with an error that a user can mend."""
    try:
        yield
    except EdgeError as error:
        _print({"error": str(error), "kind": type(error).__name__})


def _print(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
