"""The first page: totals and charts of all replicas, the replicas, sessions with failures and the latest events."""

import asyncio
from time import time
from typing import Any, Final

from starlette.requests import Request

from gateway.admin.charts import charts_of
from gateway.admin.operators import Operators, SessionQuery
from gateway.admin.page import ConsolePage

__all__ = ["PAGE"]

_MOST_FAILING: Final = 10
_MOST_WARNINGS: Final = 10
_LATEST_EVENTS: Final = 15


async def _facts(operators: Operators, _: Request) -> dict[str, Any]:
    replicas, warnings, failing, events = await asyncio.gather(
        operators.replicas(),
        operators.warnings(),
        operators.sessions(SessionQuery(only="failing", limit=_MOST_FAILING)),
        operators.events(_LATEST_EVENTS),
    )
    return {
        "replicas": replicas,
        "charts": charts_of(replicas, time()),
        "unavailable": [(r.replica, server) for r in replicas for server in r.unavailable][:_MOST_WARNINGS],
        "warnings": warnings[:_MOST_WARNINGS],
        "failing": failing.sessions,
        "events": events,
        "totals": {
            "sessions": sum(r.sessions for r in replicas),
            "in_flight": sum(r.in_flight for r in replicas),
            "processes": sum(r.processes for r in replicas),
            "calls": sum(r.calls for r in replicas),
            "failed": sum(r.failed for r in replicas),
            "restarts": sum(r.restarts for r in replicas),
        },
    }


async def _drain(operators: Operators, request: Request, operator: str) -> str:
    await operators.drain(request.path_params["replica"], operator)
    return PAGE.path


async def _admit(operators: Operators, request: Request, operator: str) -> str:
    await operators.admit(request.path_params["replica"], operator)
    return PAGE.path


PAGE: Final = ConsolePage(
    path="/admin",
    label="Overview",
    position=1,
    facts=_facts,
    actions={"/admin/replicas/{replica}/drain": _drain, "/admin/replicas/{replica}/admit": _admit},
    template="""\
{% extends "layout.html" %}
{% block title %}Overview{% endblock %}
{% block body %}<h1>Overview</h1>{% endblock %}
{% block live %}
{% import "tables.html" as tables with context %}
<dl class="tiles">
<div><dt>Sessions</dt><dd>{{ totals.sessions }}</dd></div>
<div><dt>In flight</dt><dd>{{ totals.in_flight }}</dd></div>
<div><dt>Processes</dt><dd>{{ totals.processes }}</dd></div>
<div><dt>Requests</dt><dd>{{ "{:,}".format(totals.calls) }}</dd></div>
<div><dt>Failed</dt><dd{% if totals.failed %} class="bad"{% endif %}>{{ "{:,}".format(totals.failed) }}</dd></div>
<div><dt>Restarts</dt><dd>{{ totals.restarts }}</dd></div>
</dl>
<div class="charts">
{% for chart in charts %}
<figure>
<figcaption>
{{ chart.title }} <b>{{ chart.now }}</b>
{% for name in chart.names %} <span class="key{{ loop.index0 }}">{{ name }}</span>{% endfor %}
</figcaption>
{{ chart.svg }}
<p class="axis"><span>5 min ago</span><span>at most {{ chart.top }}</span><span>now</span></p>
</figure>
{% endfor %}
</div>
<section aria-labelledby="replicas">
<h2 id="replicas">Replicas</h2>
<div class="wide"><table>
<thead><tr>
<th scope="col">Replica</th><th scope="col">State</th><th scope="col">Address</th><th scope="col">Up</th>
<th scope="col" class="n">Sessions</th><th scope="col" class="n">Processes</th><th scope="col" class="n">In flight</th>
<th scope="col" class="n">Requests</th><th scope="col" class="n">Failed</th><th scope="col" class="n">Forwarded</th>
<th scope="col" class="n">Memory</th><th scope="col"><span class="hidden">What can be done</span></th>
</tr></thead>
<tbody>
{% for r in replicas %}
<tr>
<th scope="row"><a href="{{ root }}/admin/sessions?q={{ r.replica | urlencode }}">{{ r.replica }}</a>
{%- if r.here %} <small>this one</small>{% endif %}</th>
{% if r.silent %}
<td class="bad">no answer</td><td>{{ r.address }}</td>
<td colspan="8">the replica holds a lease but does not answer</td><td></td>
{% else %}
<td{% if not r.ready %} class="bad"{% endif %}>
{{- "draining" if r.draining else "ready" if r.ready else "not ready" }}</td>
<td>{{ r.address or "alone" }}</td><td>{{ r.up_s | span }}</td>
<td class="n">{{ r.sessions }}</td><td class="n">{{ r.processes }}</td><td class="n">{{ r.in_flight }}</td>
<td class="n">{{ "{:,}".format(r.calls) }}</td><td class="n">{{ r.failed }}</td><td class="n">{{ r.forwarded }}</td>
<td class="n">{{ r.memory_bytes | bytes }}</td>
<td>
{% if r.draining %}
<form method="post" action="{{ root }}/admin/replicas/{{ r.replica }}/admit"><button>Admit</button></form>
{% else %}
<details><summary>Drain…</summary><form method="post" action="{{ root }}/admin/replicas/{{ r.replica }}/drain">
<button class="danger">Hand over its sessions</button></form></details>
{% endif %}
</td>
{% endif %}
</tr>
{% endfor %}
</tbody></table></div>
</section>
{% if unavailable %}
<section aria-labelledby="unavailable">
<h2 id="unavailable">Servers that cannot be used</h2>
<div class="wide"><table>
<thead><tr>
<th scope="col">Server</th><th scope="col">Replica</th><th scope="col">State</th><th scope="col">Reason</th>
<th scope="col" class="n">Attempts</th>
</tr></thead>
<tbody>
{% for replica, s in unavailable %}
<tr>
<th scope="row">{{ s.server }}</th><td>{{ replica }}</td><td class="bad">{{ s.state }}</td>
<td>{{ s.reason }}{% if s.output %}<pre>{{ s.output | join("\n") }}</pre>{% endif %}</td>
<td class="n">{{ s.attempts }}</td>
</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endif %}
{% if warnings %}
<section aria-labelledby="warnings">
<h2 id="warnings">Clients that return to no session</h2>
<div class="wide"><table>
<thead><tr>
<th scope="col">Client</th><th scope="col">User-Agent</th><th scope="col">Principal</th>
<th scope="col" class="n">Sessions</th><th scope="col">Last</th><th scope="col">What mends it</th>
</tr></thead>
<tbody>
{% for w in warnings %}
<tr>
<th scope="row">{{ w.client or "no name" }}</th><td>{{ w.agent or "none" }}</td><td>{{ w.principal }}</td>
<td class="n">{{ w.sessions }}</td><td>{{ w.last | clock }}</td><td><code>{{ w.line }}</code></td>
</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endif %}
<section aria-labelledby="failing">
<h2 id="failing">Sessions with failures</h2>
{% if failing %}{{ tables.sessions_table(failing) }}{% else %}<p>None.</p>{% endif %}
</section>
<section aria-labelledby="latest">
<h2 id="latest">Latest events</h2>
{{ tables.events_table(events) }}
</section>
{% endblock %}
""",
)
