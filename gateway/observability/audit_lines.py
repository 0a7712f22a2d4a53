"""Writes audit events as lines to a file and to stderr, each from a thread of its own.

A disk or a reader that stands still holds up no call. Its lines wait in a queue that is larger than the log's; those
for which there is no room are counted as lost, and none is dropped while there is room.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from gateway.observability.queued_output import OutputQueue, put_on_stderr
from gateway.observability.visible import visible_json
from session_store import AuditEvent

__all__ = ["MOST_BYTES", "AuditLines"]

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 16 << 20
"""What waits for the file, and for stderr: some 40,000 events."""

_WAIT_S: Final = 1.0


class AuditLines:
    """Lines of audit events. `file`: None for none."""

    def __init__(self, file: Path | None, *, to_stderr: bool, most_bytes: int = MOST_BYTES) -> None:
        self._lost: deque[int] = deque()  # appended to by threads
        self._standing: set[str] = set()  # who was told to stand still
        writers: dict[str, Callable[[bytes], None]] = {}
        if file is not None:
            writers["the audit file"] = partial(_append, file)
        if to_stderr:
            writers["stderr"] = _to_stderr
        self._queues = {
            name: OutputQueue(write, most_bytes, partial(self._written, name)) for name, write in writers.items()
        }

    def write(self, events: Sequence[AuditEvent]) -> None:
        """Queue the lines of the events. Those for which there is no room are lost."""
        if not events or not self._queues:
            return
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        for queue in self._queues.values():
            if not queue.offer(lines):
                self._lost.append(len(events))

    def take_lost(self) -> int:
        """How many lines were lost since the last time."""
        return sum(self._lost.popleft() for _ in range(len(self._lost)))

    async def settled(self) -> None:
        """Wait until all lines are written, for `_WAIT_S` at most. Who stands still longer is in the log, once."""
        for name, queue in self._queues.items():
            if name in self._standing:  # asked without waiting: others wait for what waits here
                is_written = queue.drain(0)
            else:
                is_written = queue.drain(0) or await asyncio.to_thread(queue.drain, _WAIT_S)
            if is_written:
                self._standing.discard(name)
            elif name not in self._standing:
                self._standing.add(name)
                logger.warning("audit events wait: %s takes none", name)

    def _written(self, name: str, lines: bytes, failure: OSError | None, _: bool) -> None:
        if failure is not None:
            self._lost.append(lines.count(b"\n"))
            logger.error("audit events are lost: %s takes none: %s", name, failure)


def _append(path: Path, lines: bytes) -> None:
    # Opened anew each time, so that it can be rotated.
    with path.open("ab") as file:
        file.write(lines)


def _to_stderr(lines: bytes) -> None:
    put_on_stderr(visible_json(lines.decode()))
