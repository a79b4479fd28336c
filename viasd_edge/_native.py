"""The one module that touches the native library: find it, load it, check it, bind what is ours.

llama-cpp-python's ctypes bindings describe exactly the llama.cpp we build (native/upstream.txt); they load the
library named by `LLAMA_CPP_LIB_PATH` once, at import, so this module must import them first.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections import deque
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viasd_edge.errors import MaskError, ModelError, NativeLibraryError
from viasd_edge.limits import ConfidenceName

logger = logging.getLogger(__name__)

LAYER_SKIP_VERSION = 1
LAYER_PROBE_VERSION = 2
_STOCK_CURE = "build it with scripts/build_stock.py"
_CURE = "build it with `pip install .` in the project's folder, or set VIASD_EDGE_LIB to a folder that holds it"
_LOG_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}  # enum ggml_log_level
_LOG_CONTINUES = 5

_SKIP_STATUS = {  # enum llama_layer_skip_status
    -1: "there is no context",
    -2: "the mask's number of layers is not the model's",
    -3: "the mask holds an unknown flag",
    -4: "recurrent and hybrid models have no blocks that can be skipped",
    -5: "models with an encoder cannot be masked",
    -6: "the mask skips every attention block; keep at least one",
    -7: "the masked graph could not be built",
}

_PROBE_KINDS: dict[ConfidenceName | None, int] = {None: 0, "hidden": 1, "lm-head": 2}  # enum llama_layer_probe_kind
_PROBE_STATUS = {  # enum llama_layer_probe_status
    -1: "there is no context",
    -2: "this kind of confidence is unknown to the library",
    -3: "the model has no output norm and head to read a layer's confidence with; use the hidden variant",
    -4: "the confidences of a model with an encoder cannot be measured",
    -5: "no confidence is being measured",
    -6: "the latest pass had more tokens than were asked for",
}


class Native:
    """The loaded library: `api` holds llama-cpp-python's bindings, the methods are ours."""

    def __init__(self, api: Any, folder: Path) -> None:
        self.api = api
        self.folder = folder
        self.errors: deque[str] = deque(maxlen=20)  # the library's latest error lines, oldest first
        self._level = logging.INFO
        self._log_callback = api.llama_log_callback(self._log)  # must outlive the library's use of it
        api.llama_log_set(self._log_callback, ctypes.c_void_p(0))
        api.llama_backend_init()

    def set_layer_skip(self, context: Any, flags: bytes | None) -> None:
        """Skip blocks in all later decodes of `context`; `flags` is uint8 [n_layer], None skips nothing."""
        # int32_t llama_set_layer_skip(struct llama_context * ctx, const uint8_t * mask, int32_t n_layer)
        call = self._bind("llama_set_layer_skip", [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32], ctypes.c_int32)
        status = call(context, flags, 0 if flags is None else len(flags))
        if status != 0:
            raise MaskError(_SKIP_STATUS.get(status, f"llama_set_layer_skip answered {status}"))

    def check_layer_skip(self, context: Any) -> None:
        """Raise MaskError if the architecture builds a block by hand that the present mask would skip."""
        # int32_t llama_layer_skip_check(struct llama_context * ctx)
        missed = self._bind("llama_layer_skip_check", [ctypes.c_void_p], ctypes.c_int32)(context)
        if missed < 0:
            raise MaskError(_SKIP_STATUS.get(missed, f"llama_layer_skip_check answered {missed}"))
        if missed > 0:
            raise MaskError(f"this architecture builds {missed} of the mask's blocks where they cannot be skipped")

    def set_layer_probe(self, context: Any, kind: ConfidenceName | None, *, last: int = 0) -> None:
        """Measure confidences in all later decodes of `context`, of the `last` tokens of each batch (0: of all)."""
        # int32_t llama_set_layer_probe(struct llama_context * ctx, int32_t kind, int32_t n_last)
        call = self._bind("llama_set_layer_probe", [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32], ctypes.c_int32)
        status = call(context, _PROBE_KINDS[kind], last)
        if status != 0:
            raise ModelError(_PROBE_STATUS.get(status, f"llama_set_layer_probe answered {status}"))

    def layer_probe(self, context: Any, n_tokens: int, n_layer: int) -> NDArray[np.float32]:
        """What the latest llama_decode, of `n_tokens`, measured, float32 [n_tokens, n_layer, 2]: attention, FFN."""
        # int32_t llama_layer_probe_get(struct llama_context * ctx, float * out, int32_t n_max)
        floats = ctypes.POINTER(ctypes.c_float)
        call = self._bind("llama_layer_probe_get", [ctypes.c_void_p, floats, ctypes.c_int32], ctypes.c_int32)
        values = np.empty((n_tokens, n_layer, 2), np.float32)
        found = call(context, values.ctypes.data_as(floats), n_tokens)
        if found != n_tokens:
            raise NativeLibraryError(_PROBE_STATUS.get(found, f"{found} of {n_tokens} tokens were measured"))
        return values

    def vocab_first_difference(self, one: Any, other: Any) -> int | None:
        """The first token number that both vocabularies have and whose text differs."""
        # int32_t llama_vocab_first_difference(const struct llama_vocab * a, const struct llama_vocab * b)
        call = self._bind("llama_vocab_first_difference", [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int32)
        token = int(call(one, other))
        return None if token < 0 else token

    def memory_bandwidth(self, n_threads: int) -> float:
        """Measure how fast `n_threads` threads read memory, GB/s."""
        # double viasd_measure_bandwidth(int32_t n_threads)
        return float(self._bind("viasd_measure_bandwidth", [ctypes.c_int32], ctypes.c_double)(n_threads))

    def int8_rate(self, n_threads: int) -> float:
        """Measure the int8 multiply-accumulates that `n_threads` threads do on registers, 1e9/s."""
        # double viasd_measure_int8_rate(int32_t n_threads)
        return float(self._bind("viasd_measure_int8_rate", [ctypes.c_int32], ctypes.c_double)(n_threads))

    def kernel_name(self) -> str:
        """Which of our small-batch kernels this machine runs; "none" where upstream's do the work."""
        if not hasattr(self.api._lib, "viasd_kernel_name"):  # noqa: SLF001
            return "none"
        # const char * viasd_kernel_name(void)
        return str(self._bind("viasd_kernel_name", [], ctypes.c_char_p)().decode())

    def system_info(self) -> str:
        """What the library was compiled for, as llama.cpp prints it."""
        return self.api.llama_print_system_info().decode()

    def _bind(self, name: str, argtypes: list[Any], restype: Any) -> Any:
        """One of our own functions; bound on use, since a stock library has none of them."""
        function = getattr(self.api._lib, name)  # noqa: SLF001
        function.argtypes, function.restype = argtypes, restype
        return function

    def _log(self, level: int, text: bytes, _user_data: Any) -> None:
        line = text.decode(errors="replace").rstrip("\n")
        if level != _LOG_CONTINUES:
            self._level = _LOG_LEVELS.get(level, logging.DEBUG)
        if self._level >= logging.ERROR and line:
            self.errors.append(line)
        logger.log(self._level, "%s", line)


def library_folder() -> Path:
    """Where our library is looked for: `VIASD_EDGE_LIB`, else the package's `lib` folder."""
    override = os.environ.get("VIASD_EDGE_LIB")
    if override:
        return Path(override)
    return Path(str(resources.files("viasd_edge").joinpath("lib")))


@cache
def native() -> Native:
    """The library, loaded on first use. Raises NativeLibraryError."""
    folder = library_folder()
    stock = bool(os.environ.get("VIASD_EDGE_STOCK"))  # the process that `bench` compares with
    cure = _STOCK_CURE if stock else _CURE
    loaded = sys.modules.get("llama_cpp.llama_cpp")
    if loaded is not None and Path(str(loaded._base_path)).resolve() != folder.resolve():  # noqa: SLF001
        raise NativeLibraryError(
            f"llama_cpp has already loaded {loaded._base_path}, we need {folder}: import viasd_edge before llama_cpp"  # noqa: SLF001
        )
    os.environ["LLAMA_CPP_LIB_PATH"] = str(folder)
    try:
        import llama_cpp.llama_cpp as api
    except ImportError as error:
        raise NativeLibraryError(f"llama-cpp-python is not installed ({error}); {_CURE}") from error
    except (FileNotFoundError, RuntimeError, OSError) as error:
        raise NativeLibraryError(f"no usable library in {folder} ({error}); {cure}") from error
    if stock:
        return Native(api, folder)
    if not hasattr(api._lib, "llama_layer_skip_version"):  # noqa: SLF001
        raise NativeLibraryError(f"the library in {folder} is stock llama.cpp, without our patch; {_CURE}")
    for name, wanted in (("layer_skip", LAYER_SKIP_VERSION), ("layer_probe", LAYER_PROBE_VERSION)):
        version = getattr(api._lib, f"llama_{name}_version", lambda: 0)()  # noqa: SLF001  # 0: from before there was one
        if version != wanted:
            raise NativeLibraryError(f"the library in {folder} has {name} version {version}, not {wanted}; {_CURE}")
    return Native(api, folder)
