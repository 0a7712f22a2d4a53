"""Checks of the session store: it can be opened, it answers, and what its backend reports."""

from collections.abc import AsyncIterator
from typing import Final

from gateway.doctor.findings import Finding, failure, ok, warning
from session_store import Backend, StoreError
from session_store.connect import shown
from session_store.ports.backend import Observation

__all__ = ["check_store"]

_REACH: Final = "check that the store runs, and that this machine reaches it with that name, port and password"
_ALLOW: Final = "allow the gateway's Redis user +info and the commands that docs/deploying.md lists"


async def check_store(url: str, backend: Backend) -> AsyncIterator[Finding]:
    """Open the store, and yield a finding for each observation of its backend. `url` is for display."""
    try:
        await backend.open()
        await backend.ping()
    except StoreError as error:
        yield failure("store", f"{shown(url)}: {error}", _REACH)
        return
    try:
        for observation in await backend.inspect():
            yield _finding(observation)
    except StoreError as error:
        yield failure("store", f"{shown(url)}: {error}", _ALLOW)
    finally:
        await backend.close()


def _finding(seen: Observation) -> Finding:
    match seen.state:
        case "ok":
            return ok(seen.subject, seen.text)
        case "warning":
            return warning(seen.subject, seen.text, seen.advice)
        case "error":
            return failure(seen.subject, seen.text, seen.advice)
