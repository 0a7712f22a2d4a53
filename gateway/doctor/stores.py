"""Checks of the session store: it can be opened, it answers, and what its backend says about it."""

from collections.abc import AsyncIterator
from typing import Final

from gateway.doctor.findings import Finding, bad, doubtful, good
from session_store import Backend, StoreError
from session_store.connect import shown
from session_store.ports.backend import Observation

__all__ = ["check_store"]

_REACH: Final = "start it, and see that this machine may reach it with that name, port and password"
_ALLOW: Final = "give the gateway's user +info, and what docs/deploying.md lists"


async def check_store(url: str, backend: Backend) -> AsyncIterator[Finding]:
    """Open the store of that URL, and report what its backend says about it."""
    try:
        await backend.open()
        await backend.ping()
    except StoreError as error:
        yield bad("store", f"{shown(url)}: {error}", _REACH)
        return
    try:
        for observation in await backend.inspect():
            yield _finding(observation)
    except StoreError as error:
        yield bad("store", f"{shown(url)}: {error}", _ALLOW)
    finally:
        await backend.close()


def _finding(seen: Observation) -> Finding:
    match seen.state:
        case "ok":
            return good(seen.subject, seen.text)
        case "warning":
            return doubtful(seen.subject, seen.text, seen.advice)
        case "error":
            return bad(seen.subject, seen.text, seen.advice)
