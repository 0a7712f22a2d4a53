"""Show one session, live or of the last day: timeline, failures, processes, tasks, and a form that ends it."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import re2
from starlette.requests import Request

from gateway.admin.pages.page import OPERATOR, ConsolePage, posted_form
from gateway.admin.pages.timeline import explained, notes_of, picture_of
from gateway.admin.query_types import NoSuch, TaskQuery
from gateway.admin.report_types import SessionRow, StderrPage
from gateway.admin.verb_handlers import Operations
from gateway.admin.verbs import Operators
from gateway.calls.messages_for_operators import StderrLine
from gateway.config.auth import OPERATOR_ISSUER
from session_store.ports.timelines import MAX_ENTRIES

_LATEST_ENTRIES: Final = 100
_LATEST_TASKS: Final = 20


async def _facts(operators: Operations, request: Request) -> dict[str, Any]:
    session = request.path_params["session"]
    timeline, row = await asyncio.gather(operators.timeline(session), _live(operators, session))
    entries = timeline.entries[-_LATEST_ENTRIES:]
    page = await operators.tasks(TaskQuery(query=timeline.head.session, limit=_LATEST_TASKS))
    return {
        **await _environment_facts(operators, request, row),
        "head": timeline.head,
        "session": row,
        "failures": [] if row is None else explained(row),
        "picture": picture_of(timeline.entries),
        "entries": [*zip(entries, notes_of(entries, [] if row is None else row.refused), strict=True)][::-1],
        "is_cut": len(timeline.entries) >= MAX_ENTRIES,
        "left_out": max(len(timeline.entries) - _LATEST_ENTRIES, 0),
        "tasks": page.tasks,
        "has_more_tasks": bool(page.after),
        "has_calls": operators.settings.gateway.audit.calls,
        **({} if row is None else await _frame_facts(operators, request, row)),
    }


async def _live(operators: Operators, session: str) -> SessionRow | None:
    """Return the row of a live session; None if the session is not live."""
    try:
        return await operators.session(session)
    except NoSuch:
        return None


async def _end(operators: Operators, request: Request, operator: str) -> str:
    await operators.end(request.path_params["session"], operator)
    return "/admin/sessions"


_FRAMES: Final = 60
_LINES: Final = 200
_EXCEPTION: Final = re2.compile(
    r"[\s|]{0,40}(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:[Ee]rror|Exception|Interrupt): \S"
)
_MOST_EXCEPTIONS: Final = 4
_MOST_BROKEN: Final = 4
"""The most lines that are joined to one exception. Libraries such as rich wrap the text of exceptions."""
_FRAMED: Final = ("╭", "│", "╰", "|", "+")


async def _frame_facts(operators: Operations, request: Request, row: SessionRow) -> dict[str, Any]:
    """Return the variables of `frames.html` for a live session: `frames` with its messages, the newest first, `stderr`,
    and the exceptions in it. If the operator may not see the messages, `frames` is None, and `stderr` has the last
    lines of each process."""
    by = request.scope.get(OPERATOR, "")
    view = await operators.watches.both(row.session, by, frames=_FRAMES, lines=_LINES)
    stderr = StderrPage(watched=False) if view is None else view.report.stderr
    if not stderr.watched and not stderr.lines:
        kept = [StderrLine(number=0, server=one.server, text=text) for one in row.processes for text in one.stderr]
        stderr = StderrPage(watched=False, lines=kept)
    exceptions = exceptions_in(line.text for line in stderr.lines)
    return {
        "frames": view
        and {
            "page": view.report.frames,
            "newest": view.report.frames.frames[::-1],
            "needs_reason": view.needs_reason,
            "is_hidden": view.is_hidden,
        },
        "stderr": stderr,
        "exceptions": exceptions,
        "may_be_refused": not row.refused and any("Permission" in one or "EACCES" in one for one in exceptions),
    }


def exceptions_in(lines: Iterable[str]) -> list[str]:
    """Return the last few exceptions in stderr lines, each once, in their order. Usually one of them is the cause of a
    failure."""
    every = [*lines]
    found = dict.fromkeys(_whole(every, at) for at in reversed(range(len(every))) if _EXCEPTION.match(every[at]))
    return [*found][:_MOST_EXCEPTIONS][::-1]


def _whole(lines: Sequence[str], at: int) -> str:
    """Return the exception at line `at`, joined with the next lines if these continue its text in the same column."""
    indent = len(lines[at]) - len(lines[at].lstrip(" "))
    parts = [lines[at].strip(" |\t")]
    for line in lines[at + 1 : at + _MOST_BROKEN] if indent else ():
        text = line.strip()
        begins = len(line) - len(line.lstrip(" "))
        if not text or begins != indent or text.startswith(_FRAMED) or _EXCEPTION.match(line):
            break
        parts.append(text)
    return " ".join(parts)


async def _switch(operators: Operations, request: Request, operator: str) -> str:
    page = await operators.session(request.path_params["session"])
    if request.url.path.endswith("/on"):
        reason = dict(await posted_form(request)).get("reason", "")
        await operators.switch_frames_on(page.session, operator, reason)
    else:
        await operators.switch_frames_off(page.session, operator)
    return f"/admin/sessions/{page.session}#frames"


_ONE_SERVER: Final = re.compile(r"/servers/([^/]+)/mcp")


async def _environment_facts(operators: Operations, request: Request, row: SessionRow | None) -> dict[str, Any]:
    """Return the template's variables `environment` and `try_tools` for a session. `row` is None for a session that has
    ended: then `environment` is None.

    `try_tools` is the URL of the Tools page; empty if the operator may not try tools in the session.
    """
    if row is None:
        return {"environment": None, "try_tools": ""}
    try:
        environment = await operators.environment(row.session)
    except NoSuch:  # it has just ended
        return {"environment": None, "try_tools": ""}
    where, own = operators.tried.where, f"{OPERATOR_ISSUER}:{request.scope.get(OPERATOR, '')}"
    if where == "off" or (where == "own" and row.principal != own):
        return {"environment": environment, "try_tools": ""}
    only = _ONE_SERVER.fullmatch(row.endpoint)
    chosen = {"session": row.session} | ({"server": only[1]} if only else {})
    return {"environment": environment, "try_tools": f"/admin/tools?{urlencode(chosen)}"}


PAGE: Final = ConsolePage(
    path="/admin/sessions/{session}",
    facts=_facts,
    actions={
        "/admin/sessions/{session}/end": _end,
        "/admin/sessions/{session}/frames/on": _switch,
        "/admin/sessions/{session}/frames/off": _switch,
    },
    title="Session {{ head.session }}",
    head="""\
<div class="head"><div><h1>Session <span class="id">{{ head.session }}</span></h1>
<p>{{ head.client or "unnamed client" }} · {{ head.principal }}</p></div>
{% if session %}
<div class="actions">
{% if try_tools %}<a class="button" href="{{ root }}{{ try_tools }}">Try a tool here</a>{% endif %}
<details><summary>End this session…</summary>
<form method="post" action="{{ root }}/admin/sessions/{{ head.session }}/end">
<p>Its processes stop at once, on every replica, and its state is deleted. Its client has to open another.</p>
<button class="danger">End session {{ head.session }}</button>
</form></details></div>
{% endif %}
</div>
""",
    live="""\
{% import "environment.html" as environments with context %}
{% import "frames.html" as watched with context %}
{% set s = session %}
{% set timeline %}
<section class="panel" aria-labelledby="timeline">
<header><h2 id="timeline">Timeline</h2>
<a href="{{ root }}/admin/events?session={{ head.session | urlencode }}">Audit events of this session</a></header>
{{ tables.timeline(picture, entries, has_calls) }}
{% if left_out %}<p class="soft">{{ left_out }} older entries are not shown.
{%- if is_cut %} Those before them are not kept.{% endif %}</p>{% endif %}
</section>
{% endset %}
{% if not s %}
<p class="notice" role="status">This session is over{% if head.ended %}: {{ head.ended }}
{%- if head.ended_at %} at {{ head.ended_at | moment }}{% endif %}{% endif %}. What happened in it is kept for a
day.</p>
<dl class="tiles">
{{ tables.tiles([("Calls", head.calls), ("Failed", head.failed)], bad=["Failed"]) }}
<div><dt>Principal</dt><dd><small>{{ head.principal }}</small></dd></div>
<div><dt>Workspace</dt><dd><small>{{ head.workspace or "none" }}</small></dd></div>
<div><dt>Era</dt><dd><small>{{ head.era }}</small></dd></div>
<div><dt>Endpoint</dt><dd><small>{{ head.endpoint }}</small></dd></div>
</dl>
{% else %}
<dl class="tiles">
<div><dt>State</dt><dd><small>{{ tables.session_state(s) }}</small></dd></div>
{{ tables.tiles([("Calls", s.calls), ("Failed", s.failed), ("In flight", s.in_flight)], bad=["Failed"]) }}
<div><dt>Idle</dt><dd>{{ s.idle_s | span }}</dd></div>
<div><dt>Age</dt><dd>{{ s.age_s | span }}</dd></div>
{% if s.state_bytes %}<div><dt>Stored</dt><dd>{{ s.state_bytes | bytes }}</dd></div>{% endif %}
</dl>
{% if failures %}
{% call(row) tables.panel("failures", "Failures",
["When", "Request", "Server", "Outcome", "Why", "Correlation"], failures) %}
{% set f, refused = row %}
<tr data-key="{{ f.at }}-{{ f.correlation }}">
<td>{{ f.at | moment }}</td><td class="wrap">{{ f.name }}</td><td class="wrap">{{ f.server }}</td>
<td><span class="badge bad">{{ f.outcome }}</span></td>
<td class="words">{{ f.why }}
{% for r in refused %}<p class="soft">Its sandbox refused {{ r.kind }} {{ r.what }} just before ({{ r.why }})
{%- if r.allows %}; <code>{{ r.allows }}</code> allows it{% endif %}.</p>{% endfor %}</td>
<td>{{ tables.correlation(f.correlation, has_calls) }}</td>
</tr>
{% endcall %}
{% endif %}
{% if s.refused %}
{% call(r) tables.panel("blocked", "Refused by sandboxes",
["Last", "Server", "What", "Why", "#Times", "Setting that allows it"], s.refused) %}
<tr>
<td>{{ r.at | moment }}</td><td class="wrap">{{ r.server }}</td><td class="words">{{ r.kind }} {{ r.what }}</td>
<td class="words">{{ r.why }}</td><td class="n">{{ r.count }}</td><td class="words"><code>{{ r.allows }}</code></td>
</tr>
{% endcall %}
{% endif %}
{% if failures %}{{ watched.stderr_panel(stderr, exceptions, frames, may_be_refused) }}{% endif %}
{{ timeline }}
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
{% if has_more_tasks %}<a href="{{ root }}/admin/tasks?q={{ head.session | urlencode }}">All tasks</a>{% endif
%}</header>
{{ tables.tasks_table(tasks) }}
</section>
{% endif %}
{% if not s %}{{ timeline }}{% endif %}
""",
)
