"""What tests of stores share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from session_store import Backend

Kind = TypeVar("Kind", bound=Backend)


@asynccontextmanager
async def opened(backend: Kind) -> AsyncIterator[Kind]:
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()
