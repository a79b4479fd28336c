"""The machine: its processor, the memory this process has held, the versions at work."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil


def peak_rss() -> int:
    """The most resident memory of this process so far, bytes; mapped files count."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's memory at the time of the fork, too
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def cpu_name() -> str:
    """What the processor calls itself."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return platform.processor() or platform.machine()


def describe() -> dict[str, Any]:
    """The machine, as results name it."""
    return {"cpu": cpu_name(), "architecture": platform.machine(), "cores": os.cpu_count(), "system": platform.system()}


def device_text() -> str:
    """The machine in one line, as masks name it."""
    machine = describe()
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['system']} {machine['architecture']}"


def versions() -> dict[str, str]:
    """What is at work."""
    packages = ("viasd-edge", "llama-cpp-python", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
