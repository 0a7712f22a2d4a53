"""One task: who made it, what it calls, what became of it, and the form that cancels it."""

from typing import Any, Final

from starlette.requests import Request

from gateway.admin.operators import Operators
from gateway.admin.page import ConsolePage

__all__ = ["PAGE"]


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    return {"task": await operators.task(request.path_params["task"])}


async def _cancel(operators: Operators, request: Request, operator: str) -> str:
    await operators.cancel_task(request.path_params["task"], operator)
    return "/admin/tasks"


PAGE: Final = ConsolePage(
    path="/admin/tasks/{task}",
    facts=_facts,
    actions={"/admin/tasks/{task}/cancel": _cancel},
    template="""\
{% extends "layout.html" %}
{% block title %}Task {{ task.task }}{% endblock %}
{% block body %}
<h1>Task {{ task.task }}</h1>
{% if task.status in ("working", "input_required") %}
<details class="end"><summary>Cancel this task…</summary>
<form method="post" action="{{ root }}/admin/tasks/{{ task.task }}/cancel">
<p>Its server is told to stop, and its client finds it cancelled. What the call has done until then stays done.</p>
<button class="danger">Cancel task {{ task.task }}</button>
</form></details>
{% endif %}
{% endblock %}
{% block live %}
{% set t = task %}
<dl class="facts">
<div><dt>Session</dt><dd><a href="{{ root }}/admin/sessions/{{ t.session }}">{{ t.session }}</a></dd></div>
{% for name, value in [
    ("Status", t.outcome), ("Message", t.message or "none"), ("Principal", t.principal),
    ("Server", t.server), ("Tool", t.tool), ("Endpoint", t.endpoint), ("Age", t.age_s | span),
    ("Last change", (t.idle_s | span) ~ " ago"), ("Kept for", t.expires_in_s | span), ("Runs", t.runs),
    ("Questions to its client", t.asked),
] %}
<div><dt>{{ name }}</dt><dd{% if name == "Status" and t.has_failed %} class="bad"{% endif %}>{{ value }}</dd></div>
{% endfor %}
{% if t.error %}<div><dt>Error {{ t.error_code }}</dt><dd class="bad">{{ t.error }}</dd></div>{% endif %}
</dl>
{% endblock %}
""",
)
