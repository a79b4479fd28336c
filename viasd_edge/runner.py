"""One llama context: evaluate tokens with or without a mask, look at the logits, rewind."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import psutil
from numpy.typing import NDArray

from viasd_edge.closing import Closing
from viasd_edge.errors import ModelError, NativeLibraryError
from viasd_edge.limits import MAX_ROWS, ConfidenceName
from viasd_edge.mask import LayerMask
from viasd_edge.model import Model

Logits = NDArray[np.float32]
Confidences = NDArray[np.float32]
"""1 - entropy / log(size) of block outputs, [n_tokens, n_layer, 2]: attention, FFN. See native/src/layer-probe.h."""

_DECODE_STATUS = {1: "no room in the KV cache", 2: "aborted", -1: "invalid batch", -2: "out of memory", -3: "failed"}


@dataclass
class Work:
    """What a runner did: passes (calls of llama_decode), tokens evaluated, seconds inside them."""

    passes: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class State:
    """What a runner has evaluated, kept apart from it: `Runner.state` takes it, `Runner.restore` brings it back."""

    n_past: int
    n_full: int
    cache: ctypes.Array[ctypes.c_uint8]


class Runner(Closing):
    """A sequence of evaluated tokens in one llama context.

    `n_past` tokens are evaluated; the KV of the first `n_full` was written by the full model (the rest under a
    mask). `n_ctx` is the most tokens it takes. Logits are views into the library's buffer, valid until the next
    call. Close it before its Model, or use `with`.
    """

    def __init__(self, model: Model, *, n_ctx: int = 4096, n_threads: int | None = None, n_batch: int = 512) -> None:
        super().__init__()
        self.model = model
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.n_past = 0
        self.n_full = 0
        self.n_threads = n_threads or default_threads()
        self.lock = threading.Lock()  # held for every step of a generation
        self.user: object = None  # the generation that the cache belongs to
        self.work = {"full": Work(), "slim": Work()}
        self._native = model._native  # noqa: SLF001  # the same library
        self._api = self._native.api
        self._flags: bytes | None = None
        self._checked: set[bytes] = set()
        self._probe: tuple[ConfidenceName, int] | None = None
        self._confidences: list[Confidences] = []  # of the latest decode, batch by batch
        self._context = self._create_context()
        self._closing.callback(self._api.llama_free, self._context)
        self._memory = self._api.llama_get_memory(self._context)
        self._batch = self._api.llama_batch_init(n_batch, 0, 1)
        self._closing.callback(self._api.llama_batch_free, self._batch)
        self._batch_tokens = np.ctypeslib.as_array(self._batch.token, (n_batch,))
        self._batch_positions = np.ctypeslib.as_array(self._batch.pos, (n_batch,))
        self._batch_outputs = np.ctypeslib.as_array(self._batch.logits, (n_batch,))
        for i in range(n_batch):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = 0

    def _create_context(self) -> ctypes.c_void_p:
        params = self._api.llama_context_default_params()
        params.n_ctx = self.n_ctx
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_seq_max = 1
        params.n_outputs_max = MAX_ROWS
        params.n_threads = params.n_threads_batch = self.n_threads
        params.flash_attn_type = self._api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.swa_full = True  # a sliding-window cache that forgets cannot be rewound
        params.no_perf = True
        self._native.errors.clear()
        context = self._api.llama_init_from_model(self.model.handle, params)
        if not context:
            reason = self._native.errors[0] if self._native.errors else "no reason given"
            raise ModelError(f"{self.model.path}: no context of {self.n_ctx} tokens: {reason}; try a smaller -c")
        return context

    @cached_property
    def can_rewind(self) -> bool:
        """Whether the cache can drop its last tokens, found by trying. Call it on a fresh runner: it rewinds to 0."""
        if self.model.is_recurrent:
            return False
        self.rewind(0)
        self.decode([0, 0], rows=1)
        answer = bool(self._api.llama_memory_seq_rm(self._memory, 0, 1, -1))
        self.rewind(0)
        return answer

    def decode(
        self, tokens: Sequence[int], *, mask: LayerMask | None = None, keep_kv: bool = False, rows: int | None = None
    ) -> Logits:
        """Evaluate `tokens` after the present ones; return the logits after each of the last `rows` (default: all).

        Without `mask` by the full model. Under a mask, `keep_kv` lets skipped attention blocks still store K and V.
        Returns float32 [rows, n_vocab], a view valid until the next decode. At most MAX_ROWS rows.
        Raises NativeLibraryError if llama_decode fails (the runner is then as before), MaskError for a mask the
        model cannot run under.
        """
        n_rows = len(tokens) if rows is None else rows
        if n_rows > MAX_ROWS:
            raise ValueError(f"{n_rows} rows of logits; at most {MAX_ROWS}")
        if self.n_past + len(tokens) > self.n_ctx:
            raise ValueError(f"{self.n_past} + {len(tokens)} tokens do not fit the context of {self.n_ctx}")
        if not tokens:
            return np.empty((0, self.model.n_vocab), np.float32)
        self._set_mask(mask, keep_kv=keep_kv)
        self._confidences = []
        before = self.n_past
        # whole batches from the end, so that all rows wanted lie in the last one
        cuts = [0, *range(len(tokens) % self.n_batch or self.n_batch, len(tokens) + 1, self.n_batch)]
        try:
            for start, end in itertools.pairwise(cuts):
                self._decode_batch(tokens[start:end], n_rows if end == len(tokens) else 0, slim=mask is not None)
        except NativeLibraryError:
            self.rewind(before)
            raise
        if mask is None and self.n_full == before:
            self.n_full = self.n_past
        if n_rows == 0:
            return np.empty((0, self.model.n_vocab), np.float32)
        return np.ctypeslib.as_array(self._api.llama_get_logits(self._context), (n_rows, self.model.n_vocab))

    def _decode_batch(self, tokens: Sequence[int], n_rows: int, *, slim: bool) -> None:
        n = len(tokens)
        self._batch.n_tokens = n
        self._batch_tokens[:n] = tokens
        self._batch_positions[:n] = np.arange(self.n_past, self.n_past + n)
        self._batch_outputs[:n] = 0
        self._batch_outputs[n - n_rows : n] = 1
        started = time.perf_counter()
        status = self._api.llama_decode(self._context, self._batch)
        self._api.llama_synchronize(self._context)
        work = self.work["slim" if slim else "full"]
        work.seconds += time.perf_counter() - started
        work.passes += 1
        work.tokens += n
        self.n_past += n
        if status != 0:
            reason = _DECODE_STATUS.get(status, f"status {status}")
            raise NativeLibraryError(f"llama_decode of {n} tokens after {self.n_past - n}: {reason}")
        if self._probe and not slim:
            self._confidences.append(self._native.layer_probe(self._context, n, self.model.n_layer))

    def set_probe(self, kind: ConfidenceName | None, *, last: int = 0) -> None:
        """Measure the confidence of every block's output in all later full passes; logits stay what they are.

        "hidden" takes the entropy over the output itself, "lm-head" over the vocabulary: two products with the model's
        head for every layer and token, so `last` restricts it to the last tokens of a batch (0: all). None: off.
        Raises ModelError for a model that cannot be measured.
        """
        wanted = (kind, last) if kind else None
        if wanted != self._probe:
            self._native.set_layer_probe(self._context, kind, last=last)
            self._probe, self._confidences = wanted, []

    def confidences(self) -> Confidences:
        """Of the latest decode's tokens, float32 [n_tokens, n_layer, 2]; no token without a probe or under a mask.

        NaN where there is none: a block that the architecture builds by hand, a token that `last` leaves out, and in
        the last layer's FFN a token without a row of logits.
        """
        return np.concatenate([np.empty((0, self.model.n_layer, 2), np.float32), *self._confidences])

    def _set_mask(self, mask: LayerMask | None, *, keep_kv: bool) -> None:
        flags = None if mask is None else mask.flags(self.model.n_layer, keep_kv=keep_kv)
        if flags == self._flags:
            return
        self._native.set_layer_skip(self._context, flags)
        self._flags = flags
        if flags is not None and flags not in self._checked:
            self._native.check_layer_skip(self._context)
            self._checked.add(flags)

    def rewind(self, n_past: int) -> None:
        """Forget all but the first `n_past` tokens. Raises ModelError if the cache refuses, ValueError for too few."""
        if not 0 <= n_past <= self.n_past:
            raise ValueError(f"cannot rewind {self.n_past} tokens to {n_past}")
        if n_past == self.n_past and n_past > 0:
            return
        if not self._api.llama_memory_seq_rm(self._memory, 0, n_past, -1):
            raise ModelError(f"{self.model.path}: its cache cannot drop tokens; use --mode plain")
        self.n_past = n_past
        self.n_full = min(self.n_full, n_past)

    def state(self) -> State:
        """A copy of the KV cache, some 30 kB a token for a 1.5B model. Raises NativeLibraryError."""
        size = self._api.llama_state_seq_get_size(self._context, 0)
        cache = (ctypes.c_uint8 * size)()
        if self._api.llama_state_seq_get_data(self._context, cache, size, 0) != size:
            raise NativeLibraryError(f"{self.model.path}: its cache of {self.n_past} tokens could not be copied")
        return State(self.n_past, self.n_full, cache)

    def restore(self, state: State) -> None:
        """Go back, or on, to a state that this runner was in. Raises NativeLibraryError; the runner is then empty."""
        self.rewind(0)
        size = len(state.cache)
        if self._api.llama_state_seq_set_data(self._context, state.cache, size, 0) != size:
            raise NativeLibraryError(f"{self.model.path}: a cache of {state.n_past} tokens could not be restored")
        self.n_past, self.n_full = state.n_past, state.n_full

    def reset_work(self) -> None:
        """Count passes, tokens and seconds from zero."""
        self.work = {"full": Work(), "slim": Work()}


def default_threads() -> int:
    """The physical cores this process may use: a second thread on one core slows matrix products down."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)
