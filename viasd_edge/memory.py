"""How much memory this process has held."""

from __future__ import annotations

import sys
from pathlib import Path

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
