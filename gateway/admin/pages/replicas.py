"""Show the gateway processes that share the store, with forms to drain them and to end the drain."""

from typing import Any, Final

from starlette.requests import Request

from gateway.admin.pages.page import ConsolePage
from gateway.admin.verbs import Operators


async def _facts(operators: Operators, _: Request) -> dict[str, Any]:
    replicas = await operators.replicas()
    return {
        "replicas": replicas,
        "several": len(replicas) > 1,
        "most": max([r.sessions for r in replicas], default=0) or 1,
    }


async def _switch(operators: Operators, request: Request, operator: str) -> str:
    drains = request.url.path.endswith("/drain")
    await (operators.drain if drains else operators.admit)(request.path_params["replica"], operator)
    return PAGE.path


PAGE: Final = ConsolePage(
    path="/admin/replicas",
    label="Replicas",
    position=8,
    shortcut="r",
    icon="M8 2l6 3-6 3-6-3zM2 8l6 3 6-3M2 11l6 3 6-3",
    facts=_facts,
    actions={"/admin/replicas/{replica}/drain": _switch, "/admin/replicas/{replica}/admit": _switch},
    title="Replicas",
    head="""\
<div class="head"><div><h1>Replicas</h1><p>Gateway processes that share one store. A drained replica hands its
sessions
to the others and takes no new ones.</p></div></div>
""",
    live="""\
<section class="panel" aria-labelledby="replicas">
<h2 id="replicas" class="hidden">Replicas</h2>
<div class="wide"><table>
{% set actions %}<span class="hidden">Actions</span>{% endset %}
{{ tables.head(["Replica", "State"] + (["Address"] if several else []) + ["Version", "#Up", "Sessions", "#Processes",
"#In flight", "#Requests", "#Failed"] + (["#Forwarded"] if several else []) + ["#Memory", actions]) }}
<tbody>
{% for r in replicas %}
<tr data-key="{{ r.replica }}">
<th scope="row" class="wrap">
<a class="id" href="{{ root }}/admin/sessions?q={{ r.replica | urlencode }}">{{ r.replica }}</a>
{%- if r.here %}<small>shows this page</small>{% endif %}</th>
{% if r.silent %}
<td><span class="badge bad">no answer</span></td><td class="id wrap">{{ r.address }}</td>
<td colspan="10">holds a lease but does not answer</td>
{% else %}
<td><span class="badge {{ "warn" if r.draining else "good" if r.ready else "bad" }}">
{{- "draining" if r.draining else "ready" if r.ready else "not ready" }}</span>
{%- if r.outdated %}<small>older file</small>{% endif %}</td>
{% if several %}<td class="id wrap">{{ r.address or "none" }}</td>{% endif %}
<td>{{ r.version }}</td><td class="n">{{ r.up_s | span }}</td>
<td>{% if several %}{{ tables.meter(r.sessions, most) }}{% endif %}
{{ "{:,}".format(r.sessions) }}</td>
<td class="n">{{ r.processes }}</td><td class="n">{{ r.in_flight }}</td>
{{ tables.count(r.calls) }}{{ tables.count(r.failed, bad=true) }}
{% if several %}{{ tables.count(r.forwarded) }}{% endif %}
<td class="n">{{ r.memory_bytes | bytes }}</td>
<td>
{% if r.draining %}
<form method="post" action="{{ root }}/admin/replicas/{{ r.replica }}/admit"><button>Admit</button></form>
{% elif several %}
<details><summary>Drain…</summary><form method="post" action="{{ root }}/admin/replicas/{{ r.replica }}/drain">
<button class="danger">Hand over its sessions</button></form></details>
{% endif %}
</td>
{% endif %}
</tr>
{% endfor %}
</tbody></table></div>
</section>
<p class="soft">Requests and failures are counted since the start of the replica, and forgotten with it.</p>
{% if not several %}<p class="soft">This is the only gateway on its store, so there is no other that could take its
sessions.</p>{% endif %}
""",
)
