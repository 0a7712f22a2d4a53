"""All live sessions, to search, and a form that ends those of a principal, a client or a workspace."""

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from gateway.admin.operators import ONLY, OperatorError, SessionFilter, SessionQuery
from gateway.admin.page import ConsoleOperators, ConsolePage
from transports.inbound.http import read_body

__all__ = ["PAGE"]

_ROWS: Final = 50
_MAX_FORM_BYTES: Final = 16 << 10
_FILTER: Final = SessionFilter.__struct_fields__


async def _facts(operators: ConsoleOperators, request: Request) -> dict[str, Any]:
    query, only = request.query_params.get("q", ""), request.query_params.get("only", "all")
    after = request.query_params.get("after", "")
    page = await operators.sessions(SessionQuery(query=query, only=ONLY.get(only, "all"), limit=_ROWS, after=after))
    next_page = urlencode({"q": query, "only": only, "after": page.after}) if page.after else ""
    facts = {"sessions": page.sessions, "query": query, "only": only, "next_page": next_page, "after": after}
    given = [(name, value) for name, value in request.query_params.multi_items() if name in _FILTER]
    which = _filter((name, value) for name, value in given if value) if any(value for _, value in given) else None
    count = 0 if which is None else await operators.count(which)
    return {**facts, "which": which, "fields": _FILTER, "count": count}


async def _end_all(operators: ConsoleOperators, request: Request, operator: str) -> str:
    body = await read_body(request.receive, request.headers, _MAX_FORM_BYTES)
    await operators.end_all(
        _filter(parse_qsl((body or b"").decode("utf-8", "replace"), keep_blank_values=True)), operator
    )
    return "/admin/events"


def _filter(given: Iterable[tuple[str, str]]) -> SessionFilter:
    """The sessions to end. Raises `OperatorError`: a name is unknown or stands twice, or a value is empty."""
    values: dict[str, str] = {}
    for name, value in given:
        # A value that is overlooked would end more sessions than were meant.
        if name not in _FILTER or name in values:
            raise OperatorError(f"give each of {', '.join(_FILTER)} once, and nothing else")
        values[name] = value
    return SessionFilter.of(values)


PAGE: Final = ConsolePage(
    path="/admin/sessions",
    label="Sessions",
    position=2,
    facts=_facts,
    actions={"/admin/sessions/end": _end_all},
    template="""\
{% extends "layout.html" %}
{% block title %}Sessions{% endblock %}
{% block body %}
<h1>Sessions</h1>
<form class="search" role="search">
<label for="q">Find</label>
<input id="q" name="q" type="search" value="{{ query }}" placeholder="id, principal, client, workspace, server …">
<label for="only">Show</label>
<select id="only" name="only">
{% for value, label in [("all", "all"), ("failing", "with failures"), ("busy", "busy")] %}
<option value="{{ value }}"{% if only == value %} selected{% endif %}>{{ label }}</option>
{% endfor %}
</select>
<button>Find</button>
</form>
<details class="end"{% if which %} open{% endif %}><summary>End several sessions…</summary>
<form class="search">
{% for name in fields %}
<label for="{{ name }}">{{ name | capitalize }}</label>
<input id="{{ name }}" name="{{ name }}" value="{{ which[name] if which else "" }}">
{% endfor %}
<button>Count</button>
</form>
{% if count %}
<form method="post" action="{{ root }}/admin/sessions/end">
{% for name in fields if which[name] %}
<input type="hidden" name="{{ name }}" value="{{ which[name] }}">
{% endfor %}
<p>The processes of all sessions of {{ which }} stop at once, on every replica, and their state is gone.</p>
<button class="danger">End all sessions of {{ which }}</button>
</form>
{% else %}
<p>Each value must be that of the session, whole; a client is named without its version.</p>
{% endif %}
</details>
{% endblock %}
{% block live %}
{% if which %}
<p role="status">{{ count }} session{{ "" if count == 1 else "s" }} of {{ which }} would end.</p>
{% endif %}
{% import "tables.html" as tables with context %}
{% if sessions %}
{{ tables.sessions_table(sessions) }}
{% else %}
<p>No live session{% if query or only != "all" %} is like that{% endif %}.</p>
{% endif %}
<p class="pages">
{% if after %}<a href="?q={{ query | urlencode }}&amp;only={{ only | urlencode }}">First page</a>{% endif %}
{% if next_page %}<a href="?{{ next_page }}" rel="next">Next {{ sessions | length }}</a>{% endif %}
</p>
{% endblock %}
""",
)
