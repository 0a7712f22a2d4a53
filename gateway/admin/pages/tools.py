"""The tools of all servers, to search. Each leads to its page, where it can be called."""

from typing import Any, Final

from starlette.requests import Request

from gateway.admin.page import ConsoleOperators, ConsolePage

__all__ = ["PAGE"]

_ROWS: Final = 200


async def _facts(operators: ConsoleOperators, request: Request) -> dict[str, Any]:
    query, session = request.query_params.get("q", ""), request.query_params.get("session", "")
    page = operators.tried.catalog.page(query, limit=_ROWS)
    return {"tools": page.tools, "total": page.total, "unknown": page.unknown, "query": query, "session": session}


PAGE: Final = ConsolePage(
    path="/admin/tools",
    label="Tools",
    position=5,
    shortcut="t",
    icon="M10.5 2.5a3.5 3.5 0 0 0-3.2 4.9L2.5 12.2l1.3 1.3 4.8-4.8a3.5 3.5 0 0 0 4.6-4.4l-2.1 2.1-1.5-1.5 2-2.1z",
    facts=_facts,
    template="""\
{% extends "layout.html" %}
{% block title %}Tools{% endblock %}
{% block body %}
<div class="head"><h1>Tools</h1></div>
<form class="search" role="search">
<label class="grow">Find<input name="q" type="search" value="{{ query }}"
placeholder="server, name, description …"></label>
{% if session %}<input type="hidden" name="session" value="{{ session | exact }}">{% endif %}
<button>Find</button>
</form>
{% endblock %}
{% block live %}
{% if session %}<p class="notice">A tool is called in session <code>{{ session }}</code>.</p>{% endif %}
{% if unknown %}
<p class="notice">Tools not known yet: {{ unknown | join(", ") }}. These servers have
not answered, or answer sessions only.</p>
{% endif %}
<section class="panel" aria-label="Tools">
{% if tools %}
<div class="wide"><table class="cards">
<thead><tr>
<th scope="col">Tool</th><th scope="col">Server</th><th scope="col">Operation</th><th scope="col">What it does</th>
</tr></thead>
<tbody>
{% for t in tools %}
<tr>
<th scope="row"><a href="{{ root }}/admin/tools/{{ t.server | urlencode }}?name={{ t.name | urlencode }}
{%- if session %}&amp;session={{ session | urlencode }}{% endif %}">{{ t.name }}</a></th>
<td data-label="Server">{{ t.server }}</td>
<td><span class="badge{{ "" if t.operation == "read" else " warn" }}">{{ t.operation }}s</span></td>
<td class="words">{{ t.description | truncate(200) }}</td>
</tr>
{% endfor %}
</tbody></table></div>
{% else %}
<p class="empty">No tool{% if query %} is like that{% else %} is known{% endif %}.</p>
{% endif %}
</section>
{% if total > tools | length %}
<p class="soft">The first {{ tools | length }} of {{ total }}: search for others.</p>
{% endif %}
{% endblock %}
""",
)
