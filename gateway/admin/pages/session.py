"""One session, live or of the last day: timeline, failures, refusals, processes, tasks, and the form that ends it."""

import asyncio
from typing import Any, Final

from starlette.requests import Request

from gateway.admin.environment_panel import environment_facts
from gateway.admin.explained_failures import explained
from gateway.admin.frames_panel import FRAME_ACTIONS, frame_facts
from gateway.admin.operators import NoSuch, TaskQuery
from gateway.admin.page import ConsoleOperators, ConsolePage
from gateway.admin.reports import SessionRow
from gateway.admin.timeline_notes import notes_of
from gateway.admin.timeline_picture import picture_of
from gateway.admin.verbs import Operators

__all__ = ["PAGE"]

_LATEST_ENTRIES: Final = 100
_LATEST_TASKS: Final = 20


async def _facts(operators: ConsoleOperators, request: Request) -> dict[str, Any]:
    session = request.path_params["session"]
    timeline, row = await asyncio.gather(operators.timeline(session), _live(operators, session))
    entries = timeline.entries[-_LATEST_ENTRIES:]
    page = await operators.tasks(TaskQuery(query=timeline.head.session, limit=_LATEST_TASKS))
    return {
        **await environment_facts(operators, row),
        "head": timeline.head,
        "session": row,
        "failures": [] if row is None else explained(row),
        "picture": picture_of(timeline.entries),
        "entries": [*zip(entries, notes_of(entries, [] if row is None else row.refused), strict=True)][::-1],
        "left_out": max(len(timeline.entries) - _LATEST_ENTRIES, 0),
        "tasks": page.tasks,
        "has_more_tasks": bool(page.after),
        **({} if row is None else await frame_facts(operators, request, row)),
    }


async def _live(operators: Operators, session: str) -> SessionRow | None:
    """None: it is not live. What is known of it is its timeline."""
    try:
        return await operators.session(session)
    except NoSuch:
        return None


async def _end(operators: Operators, request: Request, operator: str) -> str:
    await operators.end(request.path_params["session"], operator)
    return "/admin/sessions"


PAGE: Final = ConsolePage(
    path="/admin/sessions/{session}",
    facts=_facts,
    actions={"/admin/sessions/{session}/end": _end, **FRAME_ACTIONS},
    template="""\
{% extends "layout.html" %}
{% block title %}Session {{ head.session }}{% endblock %}
{% block body %}
<div class="head"><div><h1>Session <span class="id">{{ head.session }}</span></h1>
<p>{{ head.client or "unnamed client" }} · {{ head.principal }}</p></div>
{% if session %}
<div class="actions">
{% if try_tools(operator) %}<a class="button" href="{{ root }}{{ try_tools(operator) }}">Try a tool here</a>{% endif %}
<details><summary>End this session…</summary>
<form method="post" action="{{ root }}/admin/sessions/{{ head.session }}/end">
<p>Its processes stop at once, on every replica, and its state is deleted. Its client has to open another.</p>
<button class="danger">End session {{ head.session }}</button>
</form></details></div>
{% endif %}
</div>
{% endblock %}
{% block live %}
{% import "tables.html" as tables with context %}
{% import "environment.html" as environments with context %}
{% import "frames.html" as watched with context %}
{% set s = session %}
{% if not s %}
<p class="notice" role="status">This session is over{% if head.ended %}: {{ head.ended }}
{%- if head.ended_at %} at {{ head.ended_at | moment }}{% endif %}{% endif %}. What happened in it is kept for a
day.</p>
<dl class="tiles">
<div><dt>Calls</dt><dd>{{ "{:,}".format(head.calls) }}</dd></div>
<div><dt>Failed</dt><dd{% if head.failed %} class="bad"{% endif %}>{{ "{:,}".format(head.failed) }}</dd></div>
<div><dt>Principal</dt><dd><small>{{ head.principal }}</small></dd></div>
<div><dt>Workspace</dt><dd><small>{{ head.workspace or "none" }}</small></dd></div>
<div><dt>Era</dt><dd><small>{{ head.era }}</small></dd></div>
<div><dt>Endpoint</dt><dd><small>{{ head.endpoint }}</small></dd></div>
</dl>
{% else %}
<dl class="tiles">
<div><dt>State</dt><dd><small>{{ tables.session_state(s) }}</small></dd></div>
<div><dt>Calls</dt><dd>{{ "{:,}".format(s.calls) }}</dd></div>
<div><dt>Failed</dt><dd{% if s.failed %} class="bad"{% endif %}>{{ "{:,}".format(s.failed) }}</dd></div>
<div><dt>In flight</dt><dd>{{ s.in_flight }}</dd></div>
<div><dt>Idle</dt><dd>{{ s.idle_s | span }}</dd></div>
<div><dt>Age</dt><dd>{{ s.age_s | span }}</dd></div>
{% if s.state_bytes %}<div><dt>Stored</dt><dd>{{ s.state_bytes | bytes }}</dd></div>{% endif %}
</dl>
{% if failures %}
<section class="panel" aria-labelledby="failures">
<header><h2 id="failures">Failures</h2></header>
<div class="wide"><table>
<thead><tr>
<th scope="col">When</th><th scope="col">Request</th><th scope="col">Server</th><th scope="col">Outcome</th>
<th scope="col">Why</th><th scope="col">Correlation</th>
</tr></thead>
<tbody>
{% for f, refused in failures %}
<tr data-key="{{ f.at }}-{{ f.correlation }}">
<td>{{ f.at | moment }}</td><td>{{ f.name }}</td><td>{{ f.server }}</td>
<td><span class="badge bad">{{ f.outcome }}</span></td>
<td class="words">{{ f.why }}
{% for r in refused %}<p class="soft">Its sandbox refused {{ r.kind }} {{ r.what }} just before ({{ r.why }})
{%- if r.allows %}; <code>{{ r.allows }}</code> allows it{% endif %}.</p>{% endfor %}</td>
<td><a class="id" href="{{ root }}/admin/events?q={{ f.correlation | urlencode }}"
title="{{ f.correlation }}">{{ f.correlation[:12] }}</a></td>
</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endif %}
{% if s.refused %}
<section class="panel" aria-labelledby="blocked">
<header><h2 id="blocked">Refused by sandboxes</h2></header>
<div class="wide"><table>
<thead><tr>
<th scope="col">Last</th><th scope="col">Server</th><th scope="col">What</th><th scope="col">Why</th>
<th scope="col" class="n">Times</th><th scope="col">Setting that allows it</th>
</tr></thead>
<tbody>
{% for r in s.refused %}
<tr>
<td>{{ r.at | moment }}</td><td>{{ r.server }}</td><td class="words">{{ r.kind }} {{ r.what }}</td>
<td class="words">{{ r.why }}</td><td class="n">{{ r.count }}</td><td class="words"><code>{{ r.allows }}</code></td>
</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endif %}
{% if failures %}{{ watched.stderr_panel(stderr, exceptions, frames, may_be_refused) }}{% endif %}
<section class="panel" aria-labelledby="timeline">
<header><h2 id="timeline">Timeline</h2>
<a href="{{ root }}/admin/events?session={{ head.session | urlencode }}">Audit events of this session</a></header>
{{ tables.timeline(picture, entries) }}
{% if left_out %}<p class="soft">{{ left_out }} older entries are not shown.</p>{% endif %}
</section>
{% if not failures %}{{ watched.stderr_panel(stderr, exceptions, frames, may_be_refused) }}{% endif %}
{{ watched.frames_panel(head.session, frames) }}
<section class="panel" aria-labelledby="processes">
<header><h2 id="processes">Servers of this session</h2></header>
{% for p in s.processes %}
<div data-key="server-{{ p.server }}">
<h3>{{ p.server }}
{% if p.pid is none %}<span class="badge bad">no process</span>{% elif p.in_flight %}<span
class="badge busy">busy</span>
{%- else %}<span class="badge good">runs</span>{% endif %}</h3>
<dl class="facts">
<div><dt>Process</dt><dd>{{ p.pid or "none" }}</dd></div>
<div><dt>Memory</dt><dd>{{ p.memory_bytes | bytes }}</dd></div>
<div><dt>Restarts</dt><dd{% if p.restarts %} class="bad"{% endif %}>{{ p.restarts }}</dd></div>
<div><dt>In flight</dt><dd>{{ p.in_flight }}</dd></div>
<div><dt>Era</dt><dd>{{ p.era }}</dd></div>
</dl>
</div>
{% else %}
<p class="empty">No process of its own runs now. One starts with its first call.</p>
{% endfor %}
</section>
{% if environment %}{{ environments.panel(environment) }}{% endif %}
<section class="panel" aria-labelledby="facts">
<header><h2 id="facts">Who and where</h2></header>
<dl class="facts">
{% for name, value in [
    ("Principal", s.principal), ("Workspace", s.workspace or "none"), ("Trust", s.trust),
    ("Permissions", s.permissions | join(" ") or "none"), ("Client", s.client or "unnamed"), ("Era", s.era),
    ("Endpoint", s.endpoint), ("Servers", s.upstreams | join(", ") or "none yet"), ("Replica", s.owner or "this one"),
    ("Ends in", s.expires_in_s | span), ("Waits for its client", s.parked), ("Open streams", s.streams),
] %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
{% for name, value in s.metadata.items() %}<div><dt>Metadata {{ name }}</dt><dd>{{ value }}</dd></div>{% endfor %}
{% if s.state_keys %}<div><dt>Keys of its state</dt><dd>{{ s.state_keys | join(", ") }}</dd></div>{% endif %}
</dl>
</section>
{% endif %}
{% if tasks %}
<section class="panel" aria-labelledby="tasks">
<header><h2 id="tasks">Tasks</h2>
{% if has_more_tasks %}<a href="{{ root }}/admin/tasks?q={{ s.session | urlencode }}">All tasks</a>{% endif
%}</header>
{{ tables.tasks_table(tasks) }}
</section>
{% endif %}
{% if not s %}
<section class="panel" aria-labelledby="timeline">
<header><h2 id="timeline">Timeline</h2>
<a href="{{ root }}/admin/events?session={{ head.session | urlencode }}">Audit events of this session</a></header>
{{ tables.timeline(picture, entries) }}
{% if left_out %}<p class="soft">{{ left_out }} older entries are not shown.</p>{% endif %}
</section>
{% endif %}
{% endblock %}
""",
)
