"""Show all live sessions, or those of the last day, with search, filters and sort orders. A form ends the filtered
sessions."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from gateway.admin.pages.page import ConsolePage, hours_of, posted_form
from gateway.admin.query_types import (
    FILTERS,
    ONLY,
    OperatorError,
    PastQuery,
    SessionFilter,
    SessionQuery,
)
from gateway.admin.report_types import SESSION_STATES
from gateway.admin.timelines_and_history import MOST_SEARCHED
from gateway.admin.verb_handlers import Operations
from session_store.ports.timelines import MAX_ENTRIES, MAX_SESSIONS

_ROWS: Final = 50
_TEXTS: Final = ("principal", "client", "workspace")
_ORDERS: Final = {
    "used": "last used",
    "created": "newest",
    "calls": "most calls",
    "failures": "most failures",
    "last_failure": "latest failure",
    "in_flight": "most in flight",
    "memory": "most memory",
    "id": "id",
}
_ORDER: Final = "used"


async def _facts(operators: Operations, request: Request) -> dict[str, Any]:
    if request.query_params.get("when") == "day":
        return await _of_last_day(operators, request)
    asked = request.query_params
    pairs = [(name, value) for name, value in asked.multi_items() if name in FILTERS and value]
    which = _filter(pairs) if pairs else None
    only = asked.get("only", "all")
    query = SessionQuery(
        query=asked.get("q", ""),
        only=only if only in ONLY else "all",
        limit=_ROWS,
        after=asked.get("after", ""),
        sort=asked.get("sort") or ("" if only in ("failing", "busy") else _ORDER),
        which=which,
    )
    page = await operators.sessions(query)
    kept = {"q": query.query, "only": only if only != "all" else "", "sort": asked.get("sort", ""), **dict(pairs)}
    kept = {name: value for name, value in kept.items() if value}
    return {
        "when": "now",
        "page": page,
        "sessions": page.sessions,
        "query": query,
        "order": query.order,
        "orders": _ORDERS,
        "kept": kept,
        "words": {"q": query.query} if query.query else {},
        "next_page": urlencode({**kept, "after": page.after}) if page.after else "",
        "which": which,
        "given": {name: dict(pairs).get(name, "") for name in FILTERS},
        "fields": FILTERS,
        "texts": _TEXTS,
        "servers": sorted(operators.settings.mcpServers),
        "states": SESSION_STATES,
    }


async def _of_last_day(operators: Operations, request: Request) -> dict[str, Any]:
    given = {name: request.query_params.get(name, "") for name in ("q", "principal", "client", "server", "tool")}
    failed, hours = bool(request.query_params.get("failed")), hours_of(request)
    parts = {name: value for name, value in given.items() if name != "q"}
    asked = PastQuery(query=given["q"], **parts, failed=failed, hours=hours, limit=_ROWS)
    heads, replicas = await asyncio.gather(operators.past_sessions(asked), operators.replicas())
    words = {"q": given["q"]} if given["q"] else {}
    return {
        "when": "day",
        "heads": heads,
        "given": given,
        "parts": parts.items(),
        "failed": failed,
        "hours": hours,
        "is_full": len(heads) == _ROWS,
        "is_of_entries": asked.is_of_entries,
        "most_searched": MOST_SEARCHED,
        "most_entries": MAX_ENTRIES,
        "most_kept": MAX_SESSIONS,
        "silent": sum(replica.silent for replica in replicas),
        "which": None,
        "words": words,
    }


async def _end_all(operators: Operations, request: Request, operator: str) -> str:
    await operators.end_all(_filter(await posted_form(request)), operator)
    return "/admin/events"


def _filter(given: Iterable[tuple[str, str]]) -> SessionFilter:
    """Return the session filter that a form or the URL's query gives by names and values. Raises `OperatorError` if a
    name is unknown or repeated, or a value is empty: the filter would select other sessions than were meant."""
    values: dict[str, str] = {}
    for name, value in given:
        # A value that is overlooked would end more sessions than were meant.
        if name not in FILTERS or name in values:
            raise OperatorError(f"give each of {', '.join(FILTERS)} once, and nothing else")
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
    title="Sessions",
    head="""\
<div class="head"><h1>Sessions</h1>
<div class="actions">
{{ tables.segments("When", "when", [("now", "Live"), ("day", "Last day")], when, words) }}
{% if which and query.query == "" and query.only == "all" %}
<details><summary>End these sessions…</summary>
<form method="post" action="{{ root }}/admin/sessions/end">
{% for name in fields if given[name] %}
<input type="hidden" name="{{ name }}" value="{{ given[name] | exact }}">
{% endfor %}
<p>The processes of all sessions of {{ which }}
({{ "at least " if page.is_reading or page.unanswered }}{{ page.totals.sessions }} now) stop at once, on every replica,
and their state is deleted.</p>
<button class="danger">End all sessions of {{ which }}</button>
</form></details>
{% endif %}
</div></div>
{% if when == "day" %}
<form class="search" role="search">
<input type="hidden" name="when" value="day">
<label class="grow">Find<input name="q" type="search" value="{{ given.q }}"
placeholder="id, workspace, endpoint …"></label>
{{ tables.failed_choice(failed) }}
<button>Find</button>
<span class="break"></span>
{{ tables.parts(parts) }}
{{ tables.hours(hours) }}
</form>
{% else %}
<form class="search" role="search">
<label class="grow">Find<input name="q" type="search" value="{{ query.query }}"
placeholder="id, principal, client, workspace, server …"></label>
<label>Order<select name="sort">
{% for name, label in orders.items() %}
<option value="{{ name }}"{% if order == name %} selected{% endif %}>{{ label }}</option>
{% endfor %}
</select></label>
<button>Find</button>
<span class="break"></span>
{% for name in texts %}
<label>{{ name | capitalize }}<input name="{{ name }}" value="{{ given[name] }}" size="12"></label>
{% endfor %}
<label>Server<select name="server"><option value="">all</option>
{% for name in servers %}
<option value="{{ name | exact }}"{% if given.server == name %} selected{% endif %}>{{ name }}</option>
{% endfor %}
{% if given.server and given.server not in servers %}<option selected>{{ given.server | exact }}</option>{% endif %}
</select></label>
<label>State<select name="state"><option value="">all</option>
{% for name in states %}<option{% if given.state == name %} selected{% endif %}>{{ name }}</option>
{% endfor %}
</select></label>
<label>Failures<select name="failing"><option value="">all</option>
<option value="true"{% if given.failing %} selected{% endif %}>with failures</option>
</select></label>
</form>
{% endif %}
""",
    live="""\
{% if when == "day" %}
{{ tables.unanswered(silent) }}
<section class="panel" aria-label="Sessions of the last day">
{% if heads %}{{ tables.past_table(heads) }}{% else %}<p class="empty">No session of the last day matches.</p>{%
endif %}
</section>
{% if is_full %}<p class="soft">There may be more: these {{ heads | length }} were used last.</p>{% endif %}
{% if is_of_entries %}<p class="soft">Servers and tools are looked for in the newest {{ most_entries }} entries of
the newest {{ most_searched }} sessions that match otherwise.</p>{% endif %}
<p class="soft">Kept are the newest {{ "{:,}".format(most_kept) }} sessions, each for a day after its last
use. What the last seconds of a replica that was killed had in them is not known.</p>
{% else %}
{% set t = page.totals %}
{% if page.unanswered %}
<p class="notice bad" role="status">{{ page.unanswered }} replica{{ "" if page.unanswered == 1 else "s" }} did not
answer in time, so the sessions there are not counted.</p>
{% endif %}
{% if page.is_reading %}
<p class="notice" role="status">Still reading: sessions that no replica serves are being looked for in the store, and
some are missing here.</p>
{% endif %}
{% if t %}
<dl class="tiles">
{{ tables.tiles([("Sessions", t.sessions)]) }}
{% for name in states if t.states.get(name) %}{{ tables.tiles([(name | capitalize, t.states[name])]) }}{% endfor %}
{{ tables.tiles([("With failures", t.failing), ("Calls", t.calls), ("Failed calls", t.failed),
("In flight", t.in_flight), ("Memory", t.memory_bytes | bytes)], bad=["With failures", "Failed calls"]) }}
</dl>
{% if which %}
<p class="notice" role="status">{{ t.sessions }} session{{ "" if t.sessions == 1 else "s" }} of {{ which }}
{%- if query.query %} have the words{% endif %}.</p>
{% endif %}
{% endif %}
<section class="panel" aria-label="Sessions">
{% if sessions %}
{{ tables.sessions_table(sessions, kept, order) }}
{% elif page.is_reading %}
<p class="empty">None has been found yet.</p>
{% else %}
<p class="empty">No live session{% if kept %} matches{% endif %}.</p>
{% endif %}
</section>
<p class="pages">
{% if query.after %}<a href="?{{ kept | urlencode }}">First page</a>{% endif %}
{% if next_page %}<a class="button" href="?{{ next_page }}" rel="next">Next {{ sessions | length }}</a>{% endif %}
</p>
{% endif %}
""",
)
