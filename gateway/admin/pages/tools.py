"""Show the tools of all servers, with a search. Each links to the page where an operator can call it."""

from typing import Any, Final

from starlette.requests import Request

from gateway.admin.pages.page import ConsolePage
from gateway.admin.verb_handlers import Operations

_ROWS: Final = 200


async def _facts(operators: Operations, request: Request) -> dict[str, Any]:
    given = {name: request.query_params.get(name, "") for name in ("q", "session", "server")}
    page = await operators.catalog(given["q"], server=given["server"], limit=_ROWS)
    return {"tools": page.tools, "total": page.total, "unknown": page.unknown, "query": given["q"], "given": given}


PAGE: Final = ConsolePage(
    path="/admin/tools",
    label="Tools",
    position=5,
    shortcut="t",
    icon="M10.5 2.5a3.5 3.5 0 0 0-3.2 4.9L2.5 12.2l1.3 1.3 4.8-4.8a3.5 3.5 0 0 0 4.6-4.4l-2.1 2.1-1.5-1.5 2-2.1z",
    facts=_facts,
    title="Tools",
    head="""\
<div class="head"><div><h1>Tools</h1><p>What servers offer.
A tool that does not say that it only reads may write.</p></div>
<div class="actions"><span class="soft">{{ total }} tool{{ "" if total == 1 else "s" }}</span></div></div>
<form class="search" role="search">
<label class="grow">Find<input name="q" type="search" value="{{ query }}"
placeholder="server, name, description …"></label>
{% for name in ("session", "server") if given[name] %}
<input type="hidden" name="{{ name }}" value="{{ given[name] | exact }}">
{% endfor %}
<button>Find</button>
</form>
""",
    live="""\
{% set session = given.session %}
{% if session %}<p class="notice">A tool is called in session
<a class="id" href="{{ root }}/admin/sessions/{{ session | urlencode }}">{{ session }}</a>.</p>{% endif %}
{% if unknown %}
<p class="notice">Tools not known yet: {{ unknown | join(", ") }}. These servers have
not answered, or answer sessions only.</p>
{% endif %}
<section class="panel" aria-label="Tools">
{% if tools %}
{% call(t) tables.table(["Tool", "Server", "Operation", "What it does"], tools, "cards") %}
<tr>
<th scope="row"><a href="{{ root }}/admin/tools/{{ t.server | urlencode }}?name={{ t.name | urlencode }}
{%- if session %}&amp;session={{ session | urlencode }}{% endif %}">{{ t.name }}</a></th>
<td data-label="Server">{{ t.server }}</td>
<td>{{ tables.operation(t.operation) }}</td>
<td class="words">{{ t.description | truncate(200) }}</td>
</tr>
{% endcall %}
{% else %}
<p class="empty">No tool{% if query %} matches{% else %} is known{% endif %}.</p>
{% endif %}
</section>
{% if total > tools | length %}
<p class="soft">The first {{ tools | length }} of {{ total }}: search for others.</p>
{% endif %}
""",
)
