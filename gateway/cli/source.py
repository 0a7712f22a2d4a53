"""Where a command of operators looks: into a store, or at a running gateway."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.admin.operators import Ambiguous, OperatorError, Operators
from gateway.cli.options import Where
from gateway.cli.output import complain
from session_store import StoreError, backend_for
from session_store.connect import BackendOptions, shown

__all__ = ["run_at", "source_of"]


@asynccontextmanager
async def source_of(where: Where) -> AsyncIterator[Operators]:
    """The operators' model at that place.

    Raises:
        OperatorError, StoreError: no place is given, or it cannot be used.
    """
    if where.url:
        from gateway.cli.rest_client import RestClient  # loads the HTTP client

        async with RestClient(where.url, where.key).open() as client:
            yield client
        return
    if not where.store:
        raise OperatorError("no source given: set --url to a running gateway (with MCP_GATEWAY_ADMIN_KEY), or --store")
    backend = backend_for(where.store, BackendOptions(exclusive=False, create=False))
    if not backend.is_durable:
        raise OperatorError(
            f"{shown(where.store)} keeps sessions in the gateway's memory, which other processes cannot read: give the "
            "URL of a sqlite or redis store, or use --url with the gateway's URL"
        )
    await backend.open()
    try:
        await backend.ping()
        from gateway.admin.store_only import operations_on  # loads most of the gateway

        yield operations_on(backend)
    finally:
        await backend.close()


def run_at(where: Where, work: Callable[[Operators], Awaitable[None]]) -> None:
    """Run a command on the model at that place. An error is printed, and ends the command with exit code 2."""

    async def running() -> None:
        async with source_of(where) as source:
            await work(source)

    try:
        asyncio.run(running())
    except Ambiguous as error:
        names = [f"  {row.session}  {row.principal}  {row.client or '?'}" for row in error.candidates[:10]]
        more = ["  …"] if len(error.candidates) > 10 else []
        raise complain("\n".join([str(error), *names, *more])) from None
    except (OperatorError, StoreError, ValueError) as error:
        raise complain(str(error)) from None
