"""Speculative decoding that pays on a CPU: three verification tiers for llama.cpp and GGUF files."""

import logging

from viasd_edge.errors import DownloadError, EdgeError, MaskError, ModelError, NativeLibraryError, PromptError

__version__ = "0.1.0"

__all__ = [
    "DownloadError",
    "EdgeError",
    "Engine",
    "Generation",
    "MaskError",
    "ModelError",
    "NativeLibraryError",
    "PromptError",
    "__version__",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # the library's talk is the application's choice


def __getattr__(name: str) -> object:
    """Import the engine on first use: `viasd-edge --help` needs neither numpy nor the native library."""
    if name in {"Engine", "Generation"}:
        from viasd_edge import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
