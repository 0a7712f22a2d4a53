"""Show one task: its principal, the call that it makes, its outcome, and a form that cancels it."""

from typing import Any, Final

from starlette.requests import Request

from gateway.admin.pages.page import ConsolePage
from gateway.admin.verbs import Operators


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    return {"task": await operators.task(request.path_params["task"])}


async def _cancel(operators: Operators, request: Request, operator: str) -> str:
    await operators.cancel_task(request.path_params["task"], operator)
    return "/admin/tasks"


PAGE: Final = ConsolePage(
    path="/admin/tasks/{task}",
    facts=_facts,
    actions={"/admin/tasks/{task}/cancel": _cancel},
    title="Task {{ task.task }}",
    head="""\
<div class="head"><h1>Task <span class="id">{{ task.task }}</span></h1>
{% if task.status in ("working", "input_required") %}
<div class="actions"><details><summary>Cancel this task…</summary>
<form method="post" action="{{ root }}/admin/tasks/{{ task.task }}/cancel">
<p>Its server gets a cancellation, and its client sees the task as cancelled. What the call has done
by then is not undone.</p>
<button class="danger">Cancel task {{ task.task }}</button>
</form></details></div>
{% endif %}
</div>
""",
    live="""\
{% set t = task %}
<section class="panel" aria-label="Task">
{{ tables.facts([
    ("Status", tables.outcome(t.outcome, t.has_failed)), ("Session", tables.session_link(t.session)),
    ("Principal", t.principal), ("Server", t.server), ("Tool", t.tool), ("Endpoint", t.endpoint),
    ("Message", t.message or "none"), ("Age", t.age_s | span), ("Last change", (t.idle_s | span) ~ " ago"),
    ("Kept for", t.expires_in_s | span), ("Runs", t.runs), ("Questions to its client", t.asked),
]) }}
{% if t.error %}<p class="notice bad"><b>Error {{ t.error_code }}</b> {{ t.error }}</p>{% endif %}
</section>
""",
)
