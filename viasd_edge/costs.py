"""What a pass costs on this machine: t(n), the time of one decode of n tokens with all logits, and C(n) = t(n)/t(1).

Everything speculative decoding can gain follows from C(n). The stock library is measured by the same code in a
process of its own, the two interleaved, so that a machine that slows down slows both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from viasd_edge.curves import by_turns
from viasd_edge.errors import EdgeError, ModelError
from viasd_edge.limits import MAX_ROWS
from viasd_edge.mask import LayerMask
from viasd_edge.model import Model, check_file
from viasd_edge.runner import Runner
from viasd_edge.stock import StockMeter

WIDTHS = (*range(1, 17), 24, 32)
CONTEXT = 128
"""Tokens in the context of every measured pass."""
RANDOM_WEIGHTS = "with random weights"
"""How the name of a file ends that scripts/make_shape.py wrote."""


class Meter(Protocol):
    """Times one decode of n tokens after CONTEXT others, seconds."""

    def measure(self, n: int) -> float: ...


class RunnerMeter:
    """Measures a Runner of this process; its tokens are replaced."""

    def __init__(self, runner: Runner, mask: LayerMask | None = None) -> None:
        self.runner = runner
        self._mask = mask
        self._tokens = [i % runner.model.n_vocab for i in range(CONTEXT + MAX_ROWS)]  # any text costs the same
        runner.rewind(0)
        runner.decode(self._tokens[:CONTEXT], rows=0)

    def measure(self, n: int) -> float:
        self.runner.rewind(CONTEXT)
        started = time.perf_counter()
        self.runner.decode(self._tokens[CONTEXT : CONTEXT + n], mask=self._mask)
        return time.perf_counter() - started


@contextmanager
def opened(path: Path, *, n_threads: int | None, mask: LayerMask | None = None) -> Iterator[tuple[RunnerMeter, float]]:
    """A meter of a runner of its own, and the seconds that loading the model took. Raises what Model and Runner do."""
    started = time.perf_counter()
    with Model(path) as model:
        load_seconds = time.perf_counter() - started
        if mask is not None:
            mask.check(model.n_layer, model.fingerprint)
        with Runner(model, n_ctx=CONTEXT + MAX_ROWS, n_threads=n_threads) as runner:
            yield RunnerMeter(runner, mask), load_seconds


def stock_ratio(runner: Runner, stock: Path, *, repeats: int = 15) -> float:
    """Seconds a token of the unpatched library in the folder `stock`, in ours; by turns. The runner ends up empty."""
    with StockMeter(runner.model.path, stock, n_threads=runner.n_threads) as other:
        times = by_turns([RunnerMeter(runner).measure, other.measure], (1,), repeats)
    runner.rewind(0)
    runner.reset_work()
    ours, theirs = (statistics.median(seconds) for (seconds,) in times)
    return theirs / ours


@dataclass(frozen=True)
class CostReport:
    """t(n) of ours and of stock, medians in ms, beside what the machine can do."""

    model: str
    mask: str | None
    kernel: str
    n_threads: int
    n: list[int]
    ours_ms: list[float]
    stock_ms: list[float] | None
    load_s: float
    stock_load_s: float | None
    memory_bandwidth_gbs: float
    int8_gmacs: float
    bytes_per_pass: int  # of weights read, whatever n
    macs_per_token: int

    def cost(self, times: Sequence[float], i: int) -> float:
        """C(n) of entry i."""
        return times[i] / times[0]

    @property
    def bandwidth_share(self) -> float | None:
        """What part of the machine's bandwidth t(1) reaches."""
        if not self.memory_bandwidth_gbs or self.n[0] != 1:
            return None
        return self.bytes_per_pass / (self.ours_ms[0] / 1e3) / 1e9 / self.memory_bandwidth_gbs

    @property
    def int8_share(self) -> float | None:
        """What part of the machine's int8 rate the widest pass reaches."""
        if not self.int8_gmacs:
            return None
        return self.macs_per_token * self.n[-1] / (self.ours_ms[-1] / 1e3) / 1e9 / self.int8_gmacs

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {**asdict(self), "bandwidth_share": self.bandwidth_share, "int8_share": self.int8_share}


def measure_costs(
    path: Path,
    *,
    widths: Sequence[int] = WIDTHS,
    repeats: int = 5,
    mask: LayerMask | None = None,
    n_threads: int | None = None,
    stock: Path | None = None,
) -> CostReport:
    """Measure t(n) for each width, `repeats` times after a warm-up, ours and stock by turns; medians.

    `stock` is the folder of an unpatched library, None measures ours alone. The mask applies to ours only.
    """
    with ExitStack() as closing:
        ours, load_s = closing.enter_context(opened(path, n_threads=n_threads, mask=mask))
        meters: list[Meter] = [ours]
        load_stock = None
        if stock is not None:
            other = closing.enter_context(StockMeter(path, stock, n_threads=n_threads))
            load_stock = round(other.load_seconds, 3)
            meters.append(other)
        seconds = by_turns([meter.measure for meter in meters], widths, repeats)
        native = ours.runner.model._native  # noqa: SLF001  # the same library
        threads = ours.runner.n_threads
        n_bytes, n_macs = Weights.read(path).per_pass()
        medians = [[round(statistics.median(times) * 1e3, 3) for times in meter] for meter in seconds]
        return CostReport(
            model=path.name,
            mask=str(mask) if mask else None,
            kernel=native.kernel_name(),
            n_threads=threads,
            n=list(widths),
            ours_ms=medians[0],
            stock_ms=medians[1] if stock else None,
            load_s=round(load_s, 3),
            stock_load_s=load_stock,
            memory_bandwidth_gbs=round(native.memory_bandwidth(threads), 2),
            int8_gmacs=round(native.int8_rate(threads), 1),
            bytes_per_pass=n_bytes,
            macs_per_token=n_macs,
        )


@dataclass(frozen=True)
class Weights:
    """What a pass of a dense model reads and multiplies, by its file's matrices: tensor name -> (bytes, numbers)."""

    matrices: dict[str, tuple[int, int]]
    name: str = ""  # general.name of the file

    @classmethod
    def read(cls, path: Path) -> Weights:
        """Of a GGUF file, some seconds for a large vocabulary. Raises ModelError."""
        import gguf

        check_file(path)
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, IndexError) as error:
            raise ModelError(f"{path}: its header cannot be read; download it again") from error
        tensors = {tensor.name: tensor for tensor in reader.tensors if len(tensor.shape) > 1}
        if "output.weight" in tensors:  # else the embedding is the output head, too
            tensors.pop("token_embd.weight", None)
        name = reader.fields.get("general.name")
        return cls(
            {key: (int(tensor.n_bytes), int(tensor.n_elements)) for key, tensor in tensors.items()},
            str(name.contents()) if name else "",
        )

    @property
    def is_random(self) -> bool:
        """Whether scripts/make_shape.py wrote the file: then only what a pass costs means anything."""
        return self.name.endswith(RANDOM_WEIGHTS)

    def per_pass(self, mask: LayerMask | None = None) -> tuple[int, int]:
        """(bytes read by a pass with all logits, multiply-accumulates per token), but for the blocks of a mask.

        The K and V matrices of a skipped attention block count as skipped, which they are not with `keep_kv`.
        """
        skipped = tuple(f"blk.{layer}.attn_" for layer in mask.attention) if mask else ()
        skipped += tuple(f"blk.{layer}.ffn_" for layer in mask.ffn) if mask else ()
        kept = [sizes for name, sizes in self.matrices.items() if not name.startswith(skipped)]
        return sum(n_bytes for n_bytes, _ in kept), sum(n for _, n in kept)


def plot_costs(report: CostReport, path: Path) -> None:
    """C(n) of ours and of stock as a picture; the file's ending says of which kind. Raises EdgeError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EdgeError("--plot needs matplotlib: pip install 'viasd-edge[plot]'") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, times in (("ours", report.ours_ms), ("stock", report.stock_ms)):
        if times:
            axes.plot(report.n, times, marker="o", label=name)
    floor = report.bytes_per_pass / (report.memory_bandwidth_gbs or 1) / 1e6
    axes.axhline(floor, color="grey", linestyle=":", label="memory bandwidth")
    axes.set(xlabel="tokens in the pass", ylabel="ms", title=f"{report.model} ({report.kernel})", ylim=(0, None))
    axes.legend()
    figure.savefig(path)
