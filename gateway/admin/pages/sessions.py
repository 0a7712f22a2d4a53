"""All live sessions, to search."""

from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from gateway.admin.operators import ONLY, Operators, SessionQuery
from gateway.admin.page import ConsolePage

__all__ = ["PAGE"]

_ROWS: Final = 50


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    query, only = request.query_params.get("q", ""), request.query_params.get("only", "all")
    after = request.query_params.get("after", "")
    page = await operators.sessions(SessionQuery(query=query, only=ONLY.get(only, "all"), limit=_ROWS, after=after))
    next_page = urlencode({"q": query, "only": only, "after": page.after}) if page.after else ""
    return {"sessions": page.sessions, "query": query, "only": only, "next_page": next_page, "after": after}


PAGE: Final = ConsolePage(
    path="/admin/sessions",
    label="Sessions",
    position=2,
    facts=_facts,
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
{% endblock %}
{% block live %}
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
