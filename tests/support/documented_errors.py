"""The table of error codes in docs/errors.md."""

import re
from pathlib import Path

DOCUMENT = (Path(__file__).parents[2] / "docs/errors.md").read_text(encoding="utf-8")
_ROWS = re.findall(r"^\| (-\d+) \| ([\d, ]+) \| .* \| `(\w+)` \| \w+ \| [\w ]+ \|$", DOCUMENT, re.M)

STATUSES = {int(code): {int(status) for status in statuses.split(",")} for code, statuses, _ in _ROWS}
REASONS = {int(code): reason for code, _, reason in _ROWS}
