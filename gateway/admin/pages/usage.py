"""Show how much each principal, client, server and tool was used in a range of time."""

import asyncio
from typing import Any, Final

from starlette.requests import Request

from gateway.admin.pages.charts import RANGE_CHOICES, range_of
from gateway.admin.pages.page import ConsolePage
from gateway.admin.report_types import UsageBy
from gateway.admin.verbs import Operators
from gateway.observability.usage_counts import MOST_TOOLS, MOST_WHO, OTHERS

_ROWS: Final = 200
_KINDS: Final[tuple[UsageBy, ...]] = ("principal", "client", "server", "tool")


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    over = range_of(request, "24h")
    by: UsageBy = next((kind for kind in _KINDS if kind == request.query_params.get("by")), "principal")
    rows, replicas = await asyncio.gather(operators.usage(by, over), operators.replicas())
    most = max((row.calls for row in rows), default=0) or 1
    return {
        "calls": sum(row.calls for row in rows),
        "failed": sum(row.failed for row in rows),
        "count": len(rows),
        "rows": rows[:_ROWS],
        "left_out": max(len(rows) - _ROWS, 0),
        "most": most,
        "most_names": MOST_WHO if by in ("principal", "client") else MOST_TOOLS,
        "has_others": any(row.name == OTHERS for row in rows),
        "silent": sum(replica.silent for replica in replicas),
        "by": by,
        "kinds": [(kind, f"{kind.capitalize()}s") for kind in _KINDS],
        "range": over,
        "ranges": RANGE_CHOICES,
    }


PAGE: Final = ConsolePage(
    path="/admin/usage",
    label="Usage",
    position=6,
    shortcut="u",
    icon="M2.5 13.5v-4M6.2 13.5v-9M9.8 13.5v-6M13.5 13.5v-11",
    facts=_facts,
    title="Usage",
    head="""\
<div class="head"><div><h1>Usage</h1><p>Who and what was used, the most calls first.</p></div>
<div class="actions">
{{ tables.segments("Who or what", "by", kinds, by, {"range": range}) }}
{{ tables.segments("Range", "range", ranges, range, {"by": by}) }}
</div></div>
""",
    live="""\
{{ tables.unanswered(silent) }}
{% if rows %}
<dl class="tiles">
{{ tables.tiles([(by | capitalize ~ "s", count), ("Calls", calls), ("Failed", failed)], bad=["Failed"]) }}
</dl>
{% endif %}
<section class="panel" aria-label="Usage">
{% if not rows %}<p class="empty">No call in this time.</p>
{% elif by in ("principal", "client") %}{{ tables.usage_table(rows, by, most, calls or 1) }}
{% else %}{{ tables.tool_usage_table(rows, range, most) }}{% endif %}
</section>
{% if has_others %}<p class="soft">Of each minute {{ most_names }} names are told apart. Who or what was beyond that
is counted as (others), also with a name that has a row of its own.</p>{% endif %}
{% if left_out %}<p class="soft">{{ left_out }} more are not shown.</p>{% endif %}
""",
)
