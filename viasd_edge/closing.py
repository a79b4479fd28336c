"""What owns native handles."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from typing_extensions import Self


class Closing:
    """Base of everything that must be closed: by `close()`, which is safe to call twice, or by leaving a `with`."""

    def __init__(self) -> None:
        self._closing = ExitStack()

    def close(self) -> None:
        """Free what this object opened, last first."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
