"""Show the first page: totals and charts of all replicas, failing sessions, unavailable servers, and latest events."""

import asyncio
from collections import Counter
from time import time
from typing import Any, Final

from starlette.requests import Request

from gateway.admin.formatting import amount
from gateway.admin.pages.charts import RANGE_CHOICES, charts_of, charts_of_history, range_of
from gateway.admin.pages.events import folded
from gateway.admin.pages.page import ConsolePage
from gateway.admin.query_types import SessionQuery
from gateway.admin.verbs import Operators

_MOST_FAILING: Final = 10
_MOST_WARNINGS: Final = 10
_MOST_USED: Final = 5
_LATEST_EVENTS: Final = 12
_SEARCHED_EVENTS: Final = 200
"""The number of the newest events from which the shown ones are chosen. If calls are audited, most are successful
calls."""


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    over = range_of(request, "5m")
    replicas, warnings, failing, events = await asyncio.gather(
        operators.replicas(),
        operators.warnings(),
        operators.sessions(SessionQuery(only="failing", limit=_MOST_FAILING)),
        operators.events(_SEARCHED_EVENTS),
    )
    history, tools, who, clients = await asyncio.gather(
        operators.history(over),
        operators.usage("tool", over),
        operators.usage("principal", over),
        operators.usage("client", over),
    )
    memory: Counter[str] = Counter()
    for replica in replicas:
        memory.update(replica.server_memory)
    return {
        "replicas": replicas,
        "memory": memory.most_common(_MOST_USED),
        "short": [r for r in replicas if r.memory_short],
        "charts": charts_of(replicas, time()) if over == "5m" else charts_of_history(history),
        "tools": sorted(tools, key=lambda row: -row.p99_s)[:_MOST_USED],
        "used": [("principal", who[:_MOST_USED]), ("client", clients[:_MOST_USED])],
        "range": over,
        "ranges": RANGE_CHOICES,
        "unavailable": [(r.replica, server) for r in replicas for server in r.unavailable][:_MOST_WARNINGS],
        "warnings": warnings[:_MOST_WARNINGS],
        "failing": failing.sessions,
        "events": folded(e for e in events if e["event"] != "called" or e.get("outcome") != "ok")[:_LATEST_EVENTS],
        "not_ready": [r for r in replicas if r.silent or not r.ready],
        "totals": {
            "Sessions": sum(r.sessions for r in replicas),
            **({"Replicas": len(replicas)} if len(replicas) > 1 else {}),
            "Processes": sum(r.processes for r in replicas),
            "Memory": amount(memory.total() + sum(r.memory_bytes for r in replicas)),
            "In flight": sum(r.in_flight for r in replicas),
            "Requests": sum(r.calls for r in replicas),
            "Failed": sum(r.failed for r in replicas),
            "Restarts": sum(r.restarts for r in replicas),
        },
    }


PAGE: Final = ConsolePage(
    path="/admin",
    label="Overview",
    position=1,
    shortcut="o",
    icon="M2.5 2.5h4v4h-4zM9.5 2.5h4v4h-4zM2.5 9.5h4v4h-4zM9.5 9.5h4v4h-4z",
    facts=_facts,
    title="Overview",
    head="""\
<div class="head"><h1>Overview</h1>
<div class="actions">{{ tables.segments("Range", "range", ranges, range) }}</div></div>
""",
    live="""\
{% if not_ready %}
<p class="notice bad" role="status">{{ not_ready | length }} of {{ replicas | length }} replicas
{{ "is" if not_ready | length == 1 else "are" }} not ready.
<a href="{{ root }}/admin/replicas">Replicas</a></p>
{% endif %}
{% for r in short %}
<p class="notice bad" role="status">Memory is short{% if replicas | length > 1 %} at replica {{ r.replica }}{% endif %}:
at most {{ r.most_memory | bytes }} for the gateway and its servers. Processes that nobody uses are ended sooner, and
those for which nothing is left are refused. <a href="{{ root }}/admin/sessions?sort=memory">Sessions with most</a></p>
{% endfor %}
<dl class="tiles">
{{ tables.tiles(totals.items(), bad=["Failed"]) }}
</dl>
<p class="soft">Requests, failures and restarts are counted since each replica has started.</p>
{{ tables.charts(charts) }}
{% if unavailable %}
{% set several = ["Replica"] if replicas | length > 1 else [] %}
{% call(row) tables.panel("unavailable", "Servers that cannot be used",
["Server", "State"] + several + ["Reason", "#Attempts"], unavailable) %}
{% set replica, s = row %}
<tr>
<th scope="row">{{ s.server }}</th>
<td><span class="badge {{ "warn" if s.state == "starting" else "bad" }}">{{ s.state }}</span></td>
{% if several %}<td class="id" title="{{ replica }}">{{ replica[:12] }}</td>{% endif %}
<td class="words">{{ s.reason }}{% if s.output %}<pre>{{ s.output | join("\n") }}</pre>{% endif %}</td>
<td class="n">{{ s.attempts }}</td>
</tr>
{% endcall %}
{% endif %}
<section class="panel" aria-labelledby="failing">
<header><h2 id="failing">Sessions with failures</h2>
<a href="{{ root }}/admin/sessions?only=failing">All with failures</a></header>
{% if failing %}{{ tables.sessions_table(failing) }}{% else %}<p class="empty">No call of a live session has
failed.</p>{% endif %}
</section>
<div class="grid">
{% call(u) tables.panel("slow", "Slowest tools", ["Tool", "#Calls", "#p50", "#p99"], tools,
all="/admin/servers?range=" ~ range, empty="No call in this time.") %}
<tr data-key="{{ u.server }}/{{ u.name }}">
<th scope="row" class="wrap"><a href="{{ root }}/admin/servers?{{ {"server": u.server, "range": range} | urlencode }}">
{{- u.name }}</a><small>{{ u.server }}</small></th>
{{ tables.count(u.calls) }}<td class="n">{{ u.p50_s | took }}</td><td class="n">{{ u.p99_s | took }}</td>
</tr>
{% endcall %}
{% call(row) tables.panel("memory", "Memory of servers", ["Server", "#Memory"], memory,
all="/admin/servers", empty="No server process runs.") %}
<tr data-key="memory-{{ row[0] }}"><th scope="row" class="wrap">
<a href="{{ root }}/admin/sessions?{{ {"server": row[0], "sort": "memory"} | urlencode }}">{{ row[0] }}</a></th>
<td class="n">{{ row[1] | bytes }}</td></tr>
{% endcall %}
{% for by, rows in used %}
{% call(u) tables.panel("most-" ~ by, "Most active " ~ by ~ "s", [by | capitalize, "#Calls", "#Failed"], rows,
all="/admin/usage?by=" ~ by ~ "&range=" ~ range, empty="No call in this time.") %}
<tr data-key="{{ u.name }}">
<th scope="row" class="wrap"><a href="{{ root }}/admin/sessions?{{ {"when": "day", by: u.name} | urlencode }}">
{{- u.name or "unnamed" }}</a></th>
{{ tables.count(u.calls) }}{{ tables.count(u.failed, bad=true) }}
</tr>
{% endcall %}
{% endfor %}
</div>
{% if warnings %}
{% call(w) tables.panel("warnings", "Clients that need a session key",
["Client", "User-Agent", "Principal", "#Sessions", "Last", "Setting that fixes it"], warnings) %}
<tr>
<th scope="row" class="wrap">{{ w.client or "no name" }}</th><td class="wrap">{{ w.agent or "none" }}</td>
<td class="wrap">{{ w.principal }}</td>
<td class="n">{{ "shared" if w.shared else w.sessions }}</td>
<td>{{ w.last | moment }}</td><td class="words"><code>{{ w.line }}</code></td>
</tr>
{% endcall %}
{% endif %}
<section class="panel" aria-labelledby="latest">
<header><h2 id="latest">Latest events</h2><a href="{{ root }}/admin/events">All events</a></header>
{{ tables.events_table(events) }}
</section>
""",
)
