"""Progress bars on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error for `total` requests; call the result with the number that are done.

    Shows nothing when standard error is not a terminal, or for a single request.
    """
    console = Console(stderr=True)
    if total < 2 or not console.is_terminal:
        yield lambda done: None
        return
    columns = (TextColumn("speaking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("speaking", total=total)
        yield lambda done: progress.update(task, completed=done)
