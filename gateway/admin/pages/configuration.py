"""Show the settings in effect, and where each comes from. Credentials are hidden."""

from typing import Any, Final

from starlette.requests import Request

from gateway.admin.pages.page import ConsolePage
from gateway.admin.query_types import OperatorError, has_words
from gateway.admin.verb_handlers import Operations
from gateway.config.effective_settings import EffectiveSetting, effective


async def _facts(operators: Operations, request: Request) -> dict[str, Any]:
    query, shows_all = request.query_params.get("q", ""), request.query_params.get("show") == "all"
    sections = {
        path: found
        for path, some in effective(operators.settings).items()
        if (found := [setting for setting in some if _is_found(setting, query, shows_all)])
    }
    return {"sections": sections, "query": query, "show": "all" if shows_all else "set"}


async def _reload(operators: Operations, _: Request, operator: str) -> str:
    found = await operators.reload(operator)
    if faults := [f"{one.replica}: {one.fault or 'no answer'}" for one in found if not one.difference]:
        raise OperatorError("\n".join(faults))
    return PAGE.path


def _is_found(setting: EffectiveSetting, query: str, shows_all: bool) -> bool:
    """Return True if the page shows the setting. With a query, the setting's name, value and origin together must have
    every word of the query. Without a query, the setting must have been given, unless `shows_all` is True."""
    is_shown = bool(shows_all or query.split() or setting.is_set)
    return is_shown and has_words(query, (setting.name, setting.value, setting.origin))


PAGE: Final = ConsolePage(
    path="/admin/configuration",
    label="Configuration",
    position=10,
    shortcut="c",
    icon="M2.5 5H8M11 5h2.5M2.5 11H5M8 11h5.5M8 5a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0"
    "M5 11a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0",
    facts=_facts,
    actions={"/admin/configuration/reload": _reload},
    title="Configuration",
    head="""\
<div class="head"><div><h1>Configuration</h1><p>The settings of this replica, and where each comes from.
Values of environments, headers and keys are hidden.</p></div>
<div class="actions">
<form method="post" action="{{ root }}/admin/configuration/reload"><button>Load again</button></form>
{{ tables.segments("Settings", "show", [("set", "Set"), ("all", "All")], show) }}</div></div>
<form class="search" role="search">
<label class="grow">Find<input name="q" type="search" value="{{ query }}" placeholder="name, value or file"></label>
<button>Find</button>
</form>
""",
    live="""\
{% if sections %}
<section class="panel" aria-label="Settings">
<div class="wide"><table class="settings">
{{ tables.head(["Setting", "Value", "From"]) }}
{% for path, settings in sections.items() %}
<tbody data-key="{{ path }}">
<tr class="group"><th colspan="3" scope="rowgroup"><code>{{ path }}</code></th></tr>
{% for s in settings %}
<tr>
<th scope="row"><code>{{ s.name[path | length + 1:] }}</code></th>
<td class="words"><code>{{ s.value }}</code></td>
<td class="wrap{% if not s.is_set %} soft{% endif %}">{{ s.origin }}</td>
</tr>
{% endfor %}
</tbody>
{% endfor %}
</table></div>
</section>
{% else %}
<p class="panel empty">No setting {% if query %}matches{% else %}differs from its default{% endif %}.</p>
{% endif %}
""",
)
