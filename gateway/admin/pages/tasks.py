"""Show the tasks of all sessions, with a search."""

from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from gateway.admin.pages.page import ConsolePage
from gateway.admin.query_types import TASK_STATUSES, TaskQuery
from gateway.admin.verb_handlers import SEARCHED
from gateway.admin.verbs import Operators

_ROWS: Final = 50


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    given = request.query_params
    query, status, after = given.get("q", ""), given.get("status", ""), given.get("after", "")
    status = status if status in TASK_STATUSES else ""
    page = await operators.tasks(TaskQuery(query=query, status=status, limit=_ROWS, after=after))
    next_page = urlencode({"q": query, "status": status, "after": page.after}) if page.after else ""
    facts = {"tasks": page.tasks, "query": query, "status": status, "statuses": TASK_STATUSES, "searched": SEARCHED}
    return {**facts, "next_page": next_page, "after": after}


PAGE: Final = ConsolePage(
    path="/admin/tasks",
    label="Tasks",
    position=3,
    shortcut="a",
    icon="M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12zM5.5 8l2 2 3.2-3.6",
    facts=_facts,
    title="Tasks",
    head="""\
<div class="head"><div><h1>Tasks</h1><p>Calls that go on while their client is away. What a task returned is its
client's
alone.</p></div></div>
<form class="search" role="search">
<label class="grow">Find<input name="q" type="search" value="{{ query }}"
placeholder="id, session, principal, server, tool …"></label>
<label>Status<select name="status">
<option value="">all</option>
{% for value in statuses %}
<option value="{{ value }}"{% if status == value %} selected{% endif %}>{{ value | replace("_", " ") }}</option>
{% endfor %}
</select></label>
<button>Find</button>
</form>
""",
    live="""\
<section class="panel" aria-label="Tasks">
{% if tasks %}
{{ tables.tasks_table(tasks) }}
{% else %}
<p class="empty">No task{% if query or status %} matches.{% else %}. A call becomes one where its client asks for
that, where it takes longer than <code>gateway.tasks.after_s</code>, or at once where
<code>gateway.tasks.at_once</code> names its tool.{% endif %}</p>
{% endif %}
</section>
<p class="soft">Tasks that a server makes itself are not here: only the server knows them.
{%- if query or status %} Searched are the newest {{ "{:,}".format(searched) }}.{% endif %}</p>
<p class="pages">
{% if after %}<a href="?q={{ query | urlencode }}&amp;status={{ status | urlencode }}">First page</a>{% endif %}
{% if next_page %}<a class="button" href="?{{ next_page }}" rel="next">Next {{ tasks | length }}</a>{% endif %}
</p>
""",
)
