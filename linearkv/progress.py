"""Progress of long work: a bar with rate and time left on a terminal, a line every few seconds anywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from linearkv.console import console_for, seconds

Update = Callable[[str, int, int | None], None]
"""Called with (stage, done, total); total is None where it is not known."""

EVERY_S = 5.0
_UNITS = {
    "reading": "files",
    "prefilling": "chunks",
    "measuring": "rounds",
    "checking": "states",
    "checking records": "documents",
    "recording": "documents",
    "rebuilding": "documents",
    "embedding": "chunks",
    "evaluating": "questions",
}


@contextmanager
def shown_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Update | None]:
    """Yields what to report progress to, or None where nobody would see it.

    Args:
        quiet: show nothing unless `stream` is a terminal.
        stream: standard error by default, so that standard output stays for results.
    """
    stream = stream or sys.stderr
    if stream.isatty():
        with _Bars(stream) as update:
            yield update
    else:
        yield None if quiet else _Lines(stream)


class _Lines:
    """Plain lines, at most one every `EVERY_S` seconds, and none for work that is done before that."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._stage = ""
        self._before = 0
        self._started = self._written = clock()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = self._clock()
        if stage != self._stage:
            self._stage, self._started, self._before = stage, now, done
        if now - self._written < EVERY_S:
            return
        self._written = now
        unit = _UNITS.get(stage, "")
        rate = (done - self._before) / (now - self._started) if now > self._started else 0.0
        line = f"{stage}: {done:,} {unit}" if total is None else f"{stage}: {done:,} of {total:,} {unit}"
        if rate:
            line += f", {rate:.1f} a second"
            if total is not None and done < total:
                line += f", {seconds((total - done) / rate)} left"
        print(line, file=self._stream, flush=True)


class _Bars:
    """One bar per stage."""

    def __init__(self, stream: TextIO) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Any) -> Text:
                speed = task.finished_speed or task.speed
                return Text(f"{speed:.1f}/s" if speed else "")

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            Rate(),
            TimeRemainingColumn(),
            console=console_for(stream),
            transient=True,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Update:
        self._progress.start()
        return self._update

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def _update(self, stage: str, done: int, total: int | None) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, unit=_UNITS.get(stage, ""))
        self._progress.update(self._tasks[stage], completed=done, total=total)
