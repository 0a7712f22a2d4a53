"""The other side of a connection that is fuzzed without a socket."""

import asyncio
import functools
from typing import Any


class RecordingTransport(asyncio.Transport):
    """Takes what is written until the connection is over, and records whether reading is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_paused = self.is_over = False

    def write(self, data: Any) -> None:
        if not self.is_over:
            self.written += data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 80)}.get(name, default)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_over = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_over = True

    def get_write_buffer_size(self) -> int:
        return 0


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """The loop of all that is tried."""
    return asyncio.new_event_loop()
