"""What the page of a session shows beside its calls: the environment of its servers, and where a tool can be tried."""

import re
from typing import Any, Final
from urllib.parse import urlencode

from gateway.admin.operators import NoSuch
from gateway.admin.page import ConsoleOperators
from gateway.admin.reports import SessionRow
from gateway.config.auth import OPERATOR_ISSUER

__all__ = ["environment_facts"]

_ONE_SERVER: Final = re.compile(r"/servers/([^/]+)/mcp")


async def environment_facts(operators: ConsoleOperators, row: SessionRow | None) -> dict[str, Any]:
    """The variables `environment` and `try_tools` of the template. `row` is None for a session that is over.

    `try_tools` returns the address of the Tools page for an operator; empty if that operator cannot try tools in the
    session.
    """
    environment = None
    if row is not None:
        try:
            environment = await operators.environment(row.session)
        except NoSuch:  # it has just ended
            row = None

    def try_tools(operator: str | None) -> str:
        where = operators.tried.where
        if row is None or where == "off" or (where == "own" and row.principal != f"{OPERATOR_ISSUER}:{operator}"):
            return ""
        only = _ONE_SERVER.fullmatch(row.endpoint)
        chosen = {"session": row.session} | ({"server": only[1]} if only else {})
        return f"/admin/tools?{urlencode(chosen)}"

    return {"environment": environment, "try_tools": try_tools}
