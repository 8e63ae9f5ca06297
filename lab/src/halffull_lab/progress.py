"""How far a long command is: a bar with the time left on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINE_EVERY = 20.0  # s between plain lines about the same stage


class ProgressLine:
    """One bar over the whole command, in wall seconds of the work that is planned.

    Args:
        console: where it goes.
        total: planned work, s.
    """

    def __init__(self, console: Console, *, total: float) -> None:
        self._console = console
        self._total = total
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._last_line = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # Few refreshes: they run in a thread of the process that also measures.
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
                refresh_per_second=2,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, text: str) -> None:
        """Something new begins."""
        self._stage = text
        self._last_line = time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text)
        else:
            self._console.print(text, highlight=False)

    def update(self, done: float, detail: str) -> None:
        """`done` of the planned seconds are over; `detail` about the stage."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=min(done, self._total), description=f"{self._stage}: {detail}")
        elif time.monotonic() - self._last_line >= _LINE_EVERY:
            self._last_line = time.monotonic()
            self._console.print(f"  {detail}; about {max(0.0, self._total - done):.0f} s left", highlight=False)
