"""The tasks of all sessions, to search."""

from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from gateway.admin.operators import TASK_STATUSES, Operators, TaskQuery
from gateway.admin.page import ConsolePage

__all__ = ["PAGE"]

_ROWS: Final = 50


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    given = request.query_params
    query, status, after = given.get("q", ""), given.get("status", ""), given.get("after", "")
    status = status if status in TASK_STATUSES else ""
    page = await operators.tasks(TaskQuery(query=query, status=status, limit=_ROWS, after=after))
    next_page = urlencode({"q": query, "status": status, "after": page.after}) if page.after else ""
    facts = {"tasks": page.tasks, "query": query, "status": status, "statuses": TASK_STATUSES}
    return {**facts, "next_page": next_page, "after": after}


PAGE: Final = ConsolePage(
    path="/admin/tasks",
    label="Tasks",
    position=3,
    facts=_facts,
    template="""\
{% extends "layout.html" %}
{% block title %}Tasks{% endblock %}
{% block body %}
<h1>Tasks</h1>
<form class="search" role="search">
<label for="q">Find</label>
<input id="q" name="q" type="search" value="{{ query }}" placeholder="id, session, principal, server, tool …">
<label for="status">Status</label>
<select id="status" name="status">
<option value="">all</option>
{% for value in statuses %}
<option value="{{ value }}"{% if status == value %} selected{% endif %}>{{ value | replace("_", " ") }}</option>
{% endfor %}
</select>
<button>Find</button>
</form>
{% endblock %}
{% block live %}
{% import "tables.html" as tables with context %}
{% if tasks %}
{{ tables.tasks_table(tasks) }}
{% else %}
<p>No task{% if query or status %} is like that{% endif %}.</p>
{% endif %}
<p class="pages">
{% if after %}<a href="?q={{ query | urlencode }}&amp;status={{ status | urlencode }}">First page</a>{% endif %}
{% if next_page %}<a href="?{{ next_page }}" rel="next">Next {{ tasks | length }}</a>{% endif %}
</p>
{% endblock %}
""",
)
