"""How long a server's first answer is waited for: less, once it has written something that is not a message."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["Patience"]


class Patience:
    """Waits for one answer at a time. `noise_s` is how long a server may take after its first line that is no message:
    a banner is followed by an answer, a program that is no MCP server never answers."""

    __slots__ = ("_noise_s", "_timeout", "is_noisy")

    def __init__(self, noise_s: float) -> None:
        self.is_noisy = False
        self._noise_s = noise_s
        self._timeout: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Limit the time of the block. Raises `TimeoutError`."""
        self.is_noisy = False
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                yield
        finally:
            self._timeout = None

    def noise(self) -> None:
        """The server has written a line that is no message."""
        timeout = self._timeout
        if timeout is None or self.is_noisy or (until := timeout.when()) is None:
            return
        self.is_noisy = True
        sooner = asyncio.get_running_loop().time() + self._noise_s
        if sooner < until:
            timeout.reschedule(sooner)

    def late(self, server: str, seconds: float) -> str:
        """Why the block was given up."""
        if self.is_noisy:
            return (
                f"server {server!r} writes lines to stdout that are not MCP messages, and did not answer within "
                f"{self._noise_s:g} s"
            )
        return f"server {server!r} did not start within {seconds:g} s"
