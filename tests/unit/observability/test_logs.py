"""Log lines cannot steer the terminal, in any format."""

import logging

import pytest

from tests.requirements import requirement
from tests.support.hostile_text import HOSTILE, shows_only_text
from tests.unit.observability.conftest import Log


@requirement("wall.decoded")
@pytest.mark.parametrize("form", ["pretty", "logfmt", "json"])
def test_the_log_shows_what_it_was_told(form: str, log: Log) -> None:
    stderr = log("info", form)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("t").exception("server %s", HOSTILE + "\nlevel=info forged", extra={"tool": HOSTILE})
    words = "".join(stderr.writes)
    assert "forged" in words
    # Of our own, only the colours of the pretty form.
    for colour in ("\x1b[0m", "\x1b[1m", "\x1b[2m", *(f"\x1b[{n}m" for n in range(30, 38)), "\x1b[22m"):
        words = words.replace(colour, "")
    assert shows_only_text(words)
    assert not any(line.startswith("level=info forged") for line in words.splitlines())
