"""One session: its facts, failures, refusals, processes, tasks and events, and the form that ends it."""

import asyncio
from typing import Any, Final

from starlette.requests import Request

from gateway.admin.operators import Operators, TaskQuery
from gateway.admin.page import ConsolePage

__all__ = ["PAGE"]

_LATEST_EVENTS: Final = 20
_LATEST_TASKS: Final = 20


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    session = request.path_params["session"]
    row, events = await asyncio.gather(operators.session(session), operators.events(_LATEST_EVENTS, session))
    page = await operators.tasks(TaskQuery(query=row.session, limit=_LATEST_TASKS))
    return {"session": row, "events": events, "tasks": page.tasks, "has_more_tasks": bool(page.after)}


async def _end(operators: Operators, request: Request, operator: str) -> str:
    await operators.end(request.path_params["session"], operator)
    return "/admin/sessions"


PAGE: Final = ConsolePage(
    path="/admin/sessions/{session}",
    facts=_facts,
    actions={"/admin/sessions/{session}/end": _end},
    template="""\
{% extends "layout.html" %}
{% block title %}Session {{ session.session }}{% endblock %}
{% block body %}
<h1>Session {{ session.session }}</h1>
<details class="end"><summary>End this session…</summary>
<form method="post" action="{{ root }}/admin/sessions/{{ session.session }}/end">
<p>Its processes stop at once, on every replica, and its state is gone. Its client has to open another.</p>
<button class="danger">End session {{ session.session }}</button>
</form></details>
{% endblock %}
{% block live %}
{% import "tables.html" as tables with context %}
{% set s = session %}
<dl class="facts">
{% for name, value in [
    ("Principal", s.principal), ("Workspace", s.workspace or "none"), ("Trust", s.trust),
    ("Permissions", s.permissions | join(" ") or "none"), ("Client", s.client or "unnamed"), ("Era", s.era),
    ("Endpoint", s.endpoint), ("Servers", s.upstreams | join(", ") or "none yet"), ("Replica", s.owner or "this one"),
    ("Age", s.age_s | span), ("Idle", s.idle_s | span), ("Ends in", s.expires_in_s | span),
    ("State", s.state_bytes | bytes), ("Calls", s.calls), ("Failed", s.failed), ("In flight", s.in_flight),
    ("Waits for its client", s.parked), ("Open streams", s.streams),
] %}
<div><dt>{{ name }}</dt><dd{% if name == "Failed" and value %} class="bad"{% endif %}>{{ value }}</dd></div>
{% endfor %}
</dl>
<section aria-labelledby="failures">
<h2 id="failures">Failures</h2>
{% if s.failures %}
<div class="wide"><table>
<thead><tr>
<th scope="col">When (UTC)</th><th scope="col">Server</th><th scope="col">What</th><th scope="col">Outcome</th>
<th scope="col">Why</th><th scope="col">Correlation</th>
</tr></thead>
<tbody>
{% for f in s.failures %}
<tr>
<td><time>{{ f.at | clock }}</time></td><td>{{ f.server }}</td><td>{{ f.name }}</td><td class="bad">{{ f.outcome }}</td>
<td class="words">{{ f.why }}</td><td><code>{{ f.correlation }}</code></td>
</tr>
{% endfor %}
</tbody></table></div>
{% else %}
<p>None on the replica that serves it.</p>
{% endif %}
</section>
{% if s.refused %}
<section aria-labelledby="blocked">
<h2 id="blocked">Refused by sandboxes</h2>
<div class="wide"><table>
<thead><tr>
<th scope="col">Last (UTC)</th><th scope="col">Server</th><th scope="col">What</th><th scope="col">Why</th>
<th scope="col" class="n">Times</th><th scope="col">To allow it</th>
</tr></thead>
<tbody>
{% for r in s.refused %}
<tr>
<td><time>{{ r.at | clock }}</time></td><td>{{ r.server }}</td><td class="words">{{ r.kind }} {{ r.what }}</td>
<td class="words">{{ r.why }}</td><td class="n">{{ r.count }}</td><td class="words"><code>{{ r.allows }}</code></td>
</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endif %}
<section aria-labelledby="processes">
<h2 id="processes">Servers</h2>
{% for p in s.processes %}
<h3>{{ p.server }}</h3>
<dl class="facts">
<div><dt>Process</dt><dd{% if p.pid is none %} class="bad"{% endif %}>{{ p.pid or "none running" }}</dd></div>
<div><dt>Memory</dt><dd>{{ p.memory_bytes | bytes }}</dd></div>
<div><dt>Restarts</dt><dd{% if p.restarts %} class="bad"{% endif %}>{{ p.restarts }}</dd></div>
<div><dt>In flight</dt><dd>{{ p.in_flight }}</dd></div>
<div><dt>Spoken to as</dt><dd>{{ p.era }}</dd></div>
</dl>
{% if p.stderr %}<pre tabindex="0" aria-label="Last lines of stderr">{{ p.stderr | join("\\n") }}</pre>{% endif %}
{% else %}
<p>None of its own now.</p>
{% endfor %}
</section>
{% if s.metadata or s.state_keys %}
<section aria-labelledby="kept">
<h2 id="kept">Metadata and state</h2>
<dl class="facts">
{% for name, value in s.metadata.items() %}<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>{% endfor %}
{% if s.state_keys %}<div><dt>Keys of its state</dt><dd>{{ s.state_keys | join(", ") }}</dd></div>{% endif %}
</dl>
</section>
{% endif %}
{% if tasks %}
<section aria-labelledby="tasks">
<h2 id="tasks">Tasks</h2>
{{ tables.tasks_table(tasks) }}
{% if has_more_tasks %}<p><a href="{{ root }}/admin/tasks?q={{ s.session | urlencode }}">All tasks</a></p>{% endif %}
</section>
{% endif %}
<section aria-labelledby="events">
<h2 id="events">Events</h2>
{{ tables.events_table(events) }}
</section>
{% endblock %}
""",
)
