"""One tool: what its server says of it, a form that calls it, and what came back."""

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from gateway.admin.operations import Operations
from gateway.admin.operators import OperatorError
from gateway.admin.pages.forms import JSON_CONTROL, PREFIX, Form, FormFaults, arguments_in, form_of
from gateway.admin.pages.page import ConsolePage
from gateway.admin.pages.tool_results import parts_of
from gateway.admin.reports import Attempt, ToolRow, TriedCall
from gateway.admin.tried_calls import body_of, left
from gateway.observability.visible import as_json, visible
from transports.inbound.http import peer_of

__all__ = ["PAGE"]

_MOST_CONTROLS: Final = 200
_MOST_SCHEMA: Final = 100_000
_OUTCOMES: Final = {
    "ok": ("good", "Answered"),
    "tool_error": ("bad", "The tool reports an error"),
    "error": ("bad", "Refused, or failed"),
    "asks": ("warn", "The tool asks its user"),
    "timeout": ("bad", "No answer"),
    "too_large": ("warn", "Too large to be shown"),
    "unreadable": ("bad", "Not readable"),
}


async def _facts(operators: Operations, request: Request) -> dict[str, Any]:
    query = request.query_params
    tool = operators.tried.catalog.tool(request.path_params["server"], query.get("name", ""))
    values = {"session": query.get("session", "")}
    return _shown(operators, tool, form_of(tool.input_schema), values, in_json="json" in query)


async def _try(operators: Operations, request: Request, operator: str) -> dict[str, Any]:
    """Call the tool with the arguments in the form."""
    given = await _controls(request)
    tool = operators.tried.catalog.tool(request.path_params["server"], given.get("name", ""))
    form = form_of(tool.input_schema)
    try:
        arguments = arguments_in(form, given)
    except FormFaults as error:
        return _shown(operators, tool, form, given, faults=error.faults)
    attempt = Attempt(
        server=tool.server,
        tool=tool.name,
        arguments={name: msgspec.Raw(json.dumps(value).encode()) for name, value in arguments.items()},
        session=given.get("session", "").strip(),
        keep="keep" in given,
    )
    try:
        tried = await operators.tried.call(attempt, operator, peer=peer_of(request.scope), left=left(request))
    except OperatorError as error:
        return _shown(operators, tool, form, given, problem=str(error))
    return _shown(operators, tool, form, given, tried=tried)


async def _controls(request: Request) -> dict[str, str]:
    """Return the controls of the form. Raises `OperatorError`: they cannot be read, or one stands twice."""
    try:
        pairs = parse_qsl(
            (await body_of(request)).decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_CONTROLS
        )
    except ValueError as error:
        raise OperatorError(f"the form cannot be read: {error}") from None
    if len(dict(pairs)) < len(pairs):
        raise OperatorError("the form cannot be read: one control stands in it twice")
    return dict(pairs)


def _shown(operators: Operations, tool: ToolRow, form: Form, values: Mapping[str, str], **found: Any) -> dict[str, Any]:
    """Collect what the template shows. `found` are the faults in the form, a problem, or the outcome of a call."""
    tried: TriedCall | None = found.get("tried")
    secret = {field.control for field in form.fields or () if field.kind == "password"}
    in_json = found.get("in_json", JSON_CONTROL in values) or form.fields is None
    outcome = _OUTCOMES["ok"] if tried is None else _OUTCOMES[tried.outcome]
    session = values.get("session", "")
    return {
        "tool": tool,
        "schemas": [
            (title, visible(as_json(schema, indent=2)[:_MOST_SCHEMA]))
            for title, schema in (("Input schema", tool.input_schema), ("Output schema", tool.output_schema))
            if schema is not None
        ],
        "form": form,
        "in_json": in_json,
        "values": {name: value for name, value in values.items() if name not in secret},
        "faults": found.get("faults", {}),
        "problem": found.get("problem", ""),
        "where": operators.tried.where,
        "session": tried.session if tried is not None and tried.kept else session,
        "keep": "keep" in values,
        "tried": tried,
        "tone": outcome[0],
        "outcome": outcome[1],
        "parts": [] if tried is None else parts_of(tried.result) if tried.result is not None else [],
        "error": "" if tried is None or tried.error is None else as_json(tried.error, indent=2)[:_MOST_SCHEMA],
        "messages": [] if tried is None else [visible(text) for text in (*tried.asked, *tried.messages)],
        "prefix": PREFIX,
        "json_control": JSON_CONTROL,
    }


PAGE: Final = ConsolePage(
    path="/admin/tools/{server}",
    facts=_facts,
    answers={"/admin/tools/{server}": _try},
    is_live=False,
    title="{{ tool.name }}",
    live='{% include "tool.html" %}',
)
