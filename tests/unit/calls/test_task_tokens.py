"""Progress tokens that outlive their call."""

import gc

import msgspec

from gateway.calls.task_tokens import MOST, TaskTokens
from tests.requirements import requirement


class Session:
    """A session."""


@requirement("spec.task-progress")
def test_the_oldest_token_is_forgotten_and_no_session_is_kept_alive() -> None:
    tokens, session = TaskTokens(), Session()
    for number in range(MOST + 1):
        tokens.keep(number, msgspec.Raw(b"%d" % number), session)
    assert tokens.find(0) is None and tokens.find("1") is None and tokens.find(None) is None
    kept = tokens.find(MOST)
    assert kept is not None and bytes(kept.token) == b"%d" % MOST and kept.session() is session
    del session
    gc.collect()
    assert kept.session() is None
