"""Find the running gateway or the store on which an operator's command works, and run the command."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gateway.admin.local_gateways import local_gateways
from gateway.admin.query_types import Ambiguous, OperatorError
from gateway.admin.verbs import Operators
from gateway.cli.error_exit import error_exit
from gateway.cli.find_configuration import configuration
from gateway.cli.options import AtGateway, Target, options
from gateway.config.addresses import url_here
from gateway.config.configuration_errors import ConfigurationError
from gateway.config.settings import load
from session_store import StoreError, backend_for
from session_store.connect import BackendOptions, shown

Work = Callable[..., Awaitable[None]]

_NONE: Final = (
    "no gateway given, and none is found that you have started at a terminal of this machine, on loopback, with each "
    "server in a sandbox: set --url (or MCP_GATEWAY_URL) to a running gateway, and MCP_GATEWAY_ADMIN_KEY to a key of "
    "its gateway.admin.keys"
)


@asynccontextmanager
async def open_target(target: AtGateway) -> AsyncIterator[Operators]:
    """Yield the operators' verbs of a gateway or a store, for the time of the block.

    Raises:
        OperatorError, StoreError: no gateway or store is given, or it cannot be used.
    """
    if not isinstance(target, Target) or target.url or not target.store:
        from gateway.cli.rest_client import RestClient  # loads the HTTP client

        found = gateway_at(target, or_else=", or --store to the gateway's store" if isinstance(target, Target) else "")
        async with RestClient(found.url, found.key).open() as client:
            yield client
        return
    backend = backend_for(target.store, BackendOptions(exclusive=False, create=False))
    if not backend.is_durable:
        raise OperatorError(
            f"{shown(target.store)} keeps sessions in the gateway's memory, which other processes cannot read: give "
            "the URL of a sqlite or redis store, or use --url with the gateway's URL"
        )
    await backend.open()
    try:
        await backend.ping()
        from gateway.admin.verb_handlers import operations_on  # loads most of the gateway

        yield operations_on(backend)
    finally:
        await backend.close()


def gateway_at(given: AtGateway, *, or_else: str = "") -> AtGateway:
    """Return `given` with the URL and the key of the gateway to which a command sends requests. URL missing: use URL
    and key of the one gateway that this user runs at a terminal of this machine. Only the key missing: if this user
    runs a gateway at that URL, use its URL and key; otherwise return `given` unchanged. `or_else`: the command's other
    options, as text for the error message.

    Raises:
        OperatorError: no URL is given, and this user runs no gateway or several.
    """
    if given.url and given.key:
        return given
    here = local_gateways()
    if given.url:
        return next((replace(given, url=one.url, key=one.key) for one in here if one.is_at(given.url)), given)
    if not here:
        raise OperatorError(f"{_NONE}{or_else}")
    if len(here) > 1:
        lines = [f"  --url {one.url}  (process {one.pid}, serves {one.endpoint})" for one in here]
        raise OperatorError("\n".join(["several gateways run here: say which", *lines]))
    return replace(given, url=here[0].url, key=here[0].key)


def endpoint_here(config: Path | None) -> str:
    """Return the URL that clients use for the gateway on this machine. It is the URL of the configuration if `config`
    names one, or if the current folder or the environment sets the port. Otherwise it is the URL of the one gateway
    that this user runs at a terminal; without such a gateway, the URL of the configuration or its defaults.

    Raises:
        OperatorError: several gateways run here, and none of them is that of this folder.
        ConfigurationError: the configuration has faults.
    """
    here = [] if config is not None else local_gateways()
    try:
        options = load(configuration(config)).settings.gateway
    except ConfigurationError:
        if len(here) != 1:
            raise
        return here[0].endpoint
    url = f"{url_here(options.host, options.port)}/mcp"
    if not here or "port" in options.model_fields_set or any(one.is_at(url) for one in here):
        return url
    if len(here) == 1:
        return here[0].endpoint
    raise OperatorError(
        "\n".join(["several gateways run here: say which", *(f"  --url {one.endpoint}" for one in here)])
    )


def asks(kind: type[AtGateway], *, is_endless: bool = False) -> Callable[[Work], Callable[..., Any]]:
    """Return a decorator that makes a command of an asynchronous function. The function's first argument is the
    operators' verbs; in its place, the command has the options of `kind`, which say where the gateway or the store is.

    An error is printed, and ends the command with exit code 2. `is_endless`: Ctrl-C ends the command with exit code 0.
    """

    def command_of(work: Work) -> Callable[..., Any]:
        @functools.wraps(work)
        def command(target: AtGateway, **given: Any) -> None:
            async def running() -> None:
                async with open_target(target) as operators:
                    await work(operators, **given)

            try:
                asyncio.run(running())
            except KeyboardInterrupt:
                if not is_endless:
                    raise
            except Ambiguous as error:
                names = [f"  {row.session}  {row.principal}  {row.client or '?'}" for row in error.candidates[:10]]
                more = ["  …"] if len(error.candidates) > 10 else []
                raise error_exit("\n".join([str(error), *names, *more])) from None
            except (OperatorError, StoreError, ValueError) as error:
                raise error_exit(str(error)) from None

        _, *others = inspect.signature(work, eval_str=True).parameters.values()
        target = inspect.Parameter("target", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        command.__signature__ = inspect.Signature([target, *others])  # type: ignore[attr-defined]  # what `options` reads
        return options(command)

    return command_of
