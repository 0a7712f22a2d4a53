"""All live sessions, to search, and a form that ends those of a principal, a client or a workspace."""

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from gateway.admin.operators import ONLY, OperatorError, PastQuery, SessionFilter, SessionQuery
from gateway.admin.page import ConsoleOperators, ConsolePage
from transports.inbound.http import read_body

__all__ = ["PAGE"]

_ROWS: Final = 50
_MAX_FORM_BYTES: Final = 16 << 10
_FILTER: Final = SessionFilter.__struct_fields__


async def _facts(operators: ConsoleOperators, request: Request) -> dict[str, Any]:
    query, only = request.query_params.get("q", ""), request.query_params.get("only", "all")
    after = request.query_params.get("after", "")
    if request.query_params.get("when") == "day":
        return await _of_last_day(operators, request)
    page = await operators.sessions(SessionQuery(query=query, only=ONLY.get(only, "all"), limit=_ROWS, after=after))
    next_page = urlencode({"q": query, "only": only, "after": page.after}) if page.after else ""
    facts = {
        "when": "now",
        "sessions": page.sessions,
        "query": query,
        "only": only,
        "next_page": next_page,
        "after": after,
    }
    given = [(name, value) for name, value in request.query_params.multi_items() if name in _FILTER]
    which = _filter((name, value) for name, value in given if value) if any(value for _, value in given) else None
    count = 0 if which is None else await operators.count(which)
    return {**facts, "which": which, "fields": _FILTER, "count": count}


async def _of_last_day(operators: ConsoleOperators, request: Request) -> dict[str, Any]:
    given = {name: request.query_params.get(name, "") for name in ("q", "principal", "client")}
    asked = PastQuery(query=given["q"], principal=given["principal"], client=given["client"], limit=_ROWS)
    heads = await operators.past_sessions(asked)
    facts = {"when": "day", "heads": heads, "query": given["q"], "given": given, "is_full": len(heads) == _ROWS}
    return {**facts, "only": "all", "which": None, "fields": _FILTER, "count": 0, "sessions": [], "after": ""}


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
    shortcut="s",
    icon="M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.01M2.5 8h.01M2.5 12h.01",
    facts=_facts,
    actions={"/admin/sessions/end": _end_all},
    template="""\
{% extends "layout.html" %}
{% block title %}Sessions{% endblock %}
{% block body %}
{% import "tables.html" as tables with context %}
<div class="head"><h1>Sessions</h1>
<div class="actions">
{{ tables.segments("When", "when", [("now", "Live"), ("day", "Last day")], when, {"q": query} if query else {}) }}
{% if when == "now" %}
<details{% if which %} open{% endif %}><summary>End several sessions…</summary>
<div>
<form class="search">
{% for name in fields %}
<label>{{ name | capitalize }}<input name="{{ name }}" value="{{ which[name] if which else "" }}"></label>
{% endfor %}
<button>Count</button>
</form>
{% if count %}
<form method="post" action="{{ root }}/admin/sessions/end">
{% for name in fields if which[name] %}
<input type="hidden" name="{{ name }}" value="{{ which[name] | exact }}">
{% endfor %}
<p>The processes of all sessions of {{ which }} stop at once, on every replica, and their state is deleted.</p>
<button class="danger">End all sessions of {{ which }}</button>
</form>
{% else %}
<p class="soft">Each value must be that of the session, whole; a client is named without its version.</p>
{% endif %}
</div>
</details>
{% endif %}
</div></div>
{% if when == "day" %}
<form class="search" role="search">
<input type="hidden" name="when" value="day">
<label class="grow">Find<input name="q" type="search" value="{{ query }}"
placeholder="id, workspace, endpoint …"></label>
<label>Principal<input name="principal" value="{{ given.principal }}"></label>
<label>Client<input name="client" value="{{ given.client }}"></label>
<button>Find</button>
</form>
{% else %}
<form class="search" role="search">
<label class="grow">Find<input name="q" type="search" value="{{ query }}"
placeholder="id, principal, client, workspace, server …"></label>
<label>Show<select name="only">
{% for value, label in [("all", "all"), ("failing", "with failures"), ("busy", "busy")] %}
<option value="{{ value }}"{% if only == value %} selected{% endif %}>{{ label }}</option>
{% endfor %}
</select></label>
<button>Find</button>
</form>
{% endif %}
{% endblock %}
{% block live %}
{% import "tables.html" as tables with context %}
{% if when == "day" %}
<section class="panel" aria-label="Sessions of the last day">
{% if heads %}{{ tables.past_table(heads) }}{% else %}<p class="empty">No session of the last day is like that.</p>{%
endif %}
</section>
{% if is_full %}<p class="soft">There may be more: these {{ heads | length }} were used last.</p>{% endif %}
{% else %}
{% if which %}
<p class="notice" role="status">{{ count }} session{{ "" if count == 1 else "s" }} of {{ which }} would end.</p>
{% endif %}
<section class="panel" aria-label="Sessions">
{% if sessions %}
{{ tables.sessions_table(sessions) }}
{% else %}
<p class="empty">No live session{% if query or only != "all" %} is like that{% endif %}.</p>
{% endif %}
</section>
<p class="pages">
{% if after %}<a href="?q={{ query | urlencode }}&amp;only={{ only | urlencode }}">First page</a>{% endif %}
{% if next_page %}<a class="button" href="?{{ next_page }}" rel="next">Next {{ sessions | length }}</a>{% endif %}
</p>
{% endif %}
{% endblock %}
""",
)
