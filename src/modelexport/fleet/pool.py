"""A pool on this machine: threads, each of which watches one process at a time.

    with Pool(2) as pool:
        for job, result in pool.run(jobs, work):      # in the order in which they end
            ...

The work itself is done by processes (`process.py`), so that threads are enough to wait for it. Leaving the pool, for
whatever reason, sets `stop`, which ends every process that watches it, and waits until they are gone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

# A wait without end could not be interrupted on every system.
_PATIENCE = 1.0


class Pool(Generic[Item, Outcome]):
    """At most so many items at a time, each in a thread."""

    def __init__(self, jobs: int, stop: threading.Event | None = None) -> None:
        """stop  what the work looks at to know that nobody waits for it any longer"""
        self.slots = max(1, jobs)
        self.stop = stop or threading.Event()
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="fleet")
        self._ended: queue.SimpleQueue[tuple[Item, Future[Outcome]]] = queue.SimpleQueue()

    def submit(self, item: Item, work: Callable[[Item], Outcome]) -> None:
        future = self._threads.submit(work, item)
        future.add_done_callback(lambda done: self._ended.put((item, done)))

    def wait(self, seconds: float = _PATIENCE) -> Iterator[tuple[Item, Outcome]]:
        """What has ended; nothing if nothing did in this time. An error of the work is raised here."""
        block: float | None = seconds
        while True:
            try:
                item, future = self._ended.get(block is not None, block)
            except queue.Empty:
                return
            block = None  # whatever else is there already
            if not future.cancelled():
                yield item, future.result()

    def run(self, items: Iterable[Item], work: Callable[[Item], Outcome]) -> Iterator[tuple[Item, Outcome]]:
        """Each item with what became of it, in the order in which they end."""
        left = 0
        for item in items:
            self.submit(item, work)
            left += 1
        while left:
            for item, outcome in self.wait():
                left -= 1
                yield item, outcome

    def close(self) -> None:
        """Nothing new is started, and what runs is ended."""
        self.stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
