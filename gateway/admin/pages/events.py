"""The newest audit events, of all sessions or of one."""

from typing import Any, Final

from starlette.requests import Request

from gateway.admin.operators import Operators
from gateway.admin.page import ConsolePage

__all__ = ["PAGE"]

_ROWS: Final = 200


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    session = request.query_params.get("session", "")
    return {"events": await operators.events(_ROWS, session), "session": session}


PAGE: Final = ConsolePage(
    path="/admin/events",
    label="Events",
    position=4,
    facts=_facts,
    template="""\
{% extends "layout.html" %}
{% block title %}Events{% endblock %}
{% block body %}
<h1>Events</h1>
<form class="search" role="search">
<label for="session">Session</label>
<input id="session" name="session" type="search" value="{{ session }}" placeholder="the first 8 characters of its id">
<button>Find</button>
</form>
{% endblock %}
{% block live %}
{% import "tables.html" as tables with context %}
{{ tables.events_table(events) }}
{% endblock %}
""",
)
