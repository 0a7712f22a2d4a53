"""Show the configured servers on all replicas: state, starts, processes, calls by tool, and stderr of dead
processes."""

import asyncio
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from gateway.admin.pages.charts import RANGE_CHOICES, charts_of_history, range_of
from gateway.admin.pages.page import ConsolePage, posted_form
from gateway.admin.query_types import NoSuch, OperatorError
from gateway.admin.report_types import Approval
from gateway.admin.verb_handlers import Operations


async def _facts(operators: Operations, request: Request) -> dict[str, Any]:
    over, name = range_of(request, "1h"), request.query_params.get("server", "")
    servers, history, replicas, unapproved = await asyncio.gather(
        operators.servers(over), operators.history(over, name), operators.replicas(), operators.unapproved(name)
    )
    if name and name not in [server.server for server in servers]:
        raise NoSuch(f"no server is called {name[:64]!r}")
    shown = [server for server in servers if name in ("", server.server)]
    tools = [row for server in shown for row in server.usage]
    return {
        "servers": shown,
        "tools": sorted(tools, key=lambda row: (-row.p99_s, row.server, row.name)),
        "charts": charts_of_history(history),
        "died": [(server.server, dead) for server in shown for dead in server.died],
        "restarted": any(server.restarts for server in shown),
        "silent": sum(replica.silent for replica in replicas),
        "unapproved": unapproved,
        "name": name,
        "range": over,
        "ranges": RANGE_CHOICES,
    }


async def _approve(operators: Operations, request: Request, operator: str) -> str:
    """Approve a tool, prompt or template that the lock file hides, as the posted form says. The form names the item by
    the digest of the definition that the operator was shown. Return the path of the page to show next."""
    given = dict(await posted_form(request))
    approval = Approval(**{name: given.get(name, "") for name in ("server", "kind", "digest")})
    found = await operators.approve(approval, operator)
    if faults := [f"{one.replica}: {one.fault or 'no answer'}" for one in found if not one.difference]:
        raise OperatorError("\n".join(["It is in the lock now, but is not loaded:", *faults]))
    return f"{PAGE.path}?{urlencode({'server': approval.server})}"


PAGE: Final = ConsolePage(
    path="/admin/servers",
    label="Servers",
    position=4,
    shortcut="v",
    icon="M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
    facts=_facts,
    actions={"/admin/servers/approve": _approve},
    title="Servers",
    head="""\
<div class="head"><div><h1>{% if name %}Server <span class="id">{{ name }}</span>{% else %}Servers{% endif %}</h1>
{% if name %}<p><a href="{{ root }}/admin/servers?range={{ range }}">All servers</a></p>{% endif %}</div>
<div class="actions">{{ tables.segments("Range", "range", ranges, range, {"server": name} if name else {})
}}</div></div>
""",
    live="""\
{{ tables.unanswered(silent) }}
{{ tables.unapproved(unapproved) }}
{{ tables.charts(charts) }}
<section class="panel" aria-labelledby="servers">
<header><h2 id="servers">{{ "State" if name else "All servers" }}</h2></header>
{% call(s) tables.table(["Server", "State", "Kind", "#Tools", "#Calls", "#Failed", "#p50", "#p99", "#In flight",
"#Processes", "#Memory", "#Starts", "#Start takes"] + (["Restarts"] if restarted else []), servers) %}
<tr data-key="{{ s.server }}">
<th scope="row" class="wrap"><a href="{{ root }}/admin/servers?{{ {"server": s.server, "range": range} | urlencode }}">
{{- s.server }}</a></th>
<td><span class="badge {{ {"ok": "good", "starting": "warn"}.get(s.state, "bad") }}">{{ s.state }}</span>
{%- if s.states | length > 1 %}<small>{% for state, count in s.states.items() %}{{ count }} {{ state }}
{{- "" if loop.last else ", " }}{% endfor %}</small>{% endif %}</td>
<td>{{ s.kind }}{% if s.shared %}<small>shared</small>{% endif %}</td>
<td class="n">{{ s.tools or "" }}</td>{{ tables.count(s.calls) }}{{ tables.count(s.failed, bad=true) }}
<td class="n">{% if s.calls %}{{ s.p50_s | took }}{% endif %}</td>
<td class="n">{% if s.calls %}{{ s.p99_s | took }}{% endif %}</td>
<td class="n">{{ s.in_flight }}</td><td class="n">{{ s.processes }}</td>
<td class="n">{% if s.memory_bytes %}{{ s.memory_bytes | bytes }}{% endif %}</td>
<td class="n">{{ s.started }}
{%- if s.failed_starts %}<small{% if s.state != "ok" %} class="bad"{% endif %}>{{ s.failed_starts }} failed</small>
{%- endif %}</td>
<td class="n">{% if s.start_max_s %}{{ s.start_p50_s | took }}<small>at most {{ s.start_max_s | took }}</small>{%
endif %}</td>
{% if restarted %}<td class="wrap">{% for why, count in s.restarts.items() %}{{ count }} {{ why }}
{{- "" if loop.last else ", " }}{% endfor %}</td>{% endif %}
</tr>
{% if s.state != "ok" and (s.reason or s.output) %}
<tr data-key="why-{{ s.server }}"><td colspan="14" class="words"><b class="bad">{{ s.reason }}</b>
{%- if s.attempts %} · {{ s.attempts }} attempts{% endif %}
{%- if s.output %}<pre tabindex="0" aria-label="Last output of {{ s.server }}">{{ s.output | join("\\n") }}</pre>{%
endif %}</td></tr>
{% elif s.start_failure %}
<tr data-key="why-{{ s.server }}"><td colspan="14" class="words soft">Last failed start
{%- if s.start_failed_at %}, {{ s.start_failed_at | moment }}{% endif %}: {{ s.start_failure }}</td></tr>
{% endif %}
{% endcall %}
</section>
<section class="panel" aria-labelledby="tools">
<header><h2 id="tools">Tools and methods, slowest first</h2></header>
{% if tools %}{{ tables.tool_usage_table(tools, range) }}{% else %}<p class="empty">No call in this time.</p>{% endif
%}
</section>
{% if died %}
<section class="panel" aria-labelledby="died">
<header><h2 id="died">Processes that ended by themselves</h2></header>
{% for server, dead in died %}
<div class="code" data-key="dead-{{ dead.session }}-{{ server }}">
<div><h3>{{ server }}{% if dead.session %} in session {{ tables.session_link(dead.session) }}{% endif %}</h3></div>
<pre tabindex="0" aria-label="Last output of {{ server }}">{{ dead.output | join("\\n") }}</pre></div>
{% endfor %}
</section>
{% endif %}
""",
)
