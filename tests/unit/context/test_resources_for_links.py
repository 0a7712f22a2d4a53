"""What a process gets of its session."""

from functools import partial
from typing import Any

import pytest

from gateway.context.resources_for_links import LinkResourceProvider, ReleaseStack
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.inbound.unauthenticated_limits import Limits
from transports.upstream_port import UpstreamUnavailable


@requirement("cred.refresh")
async def test_a_launcher_gets_no_folder_of_files_that_its_process_does_not_have() -> None:
    parts: list[Any] = [None, None, Limits(), None]
    with pytest.raises(UpstreamUnavailable, match=r"its launcher names \{secret_dir\}"):
        await LinkResourceProvider(*parts).for_child(a_session(FakeClock()), {}, {}, ["x", "--bind={secret_dir}", "--"])


def test_what_a_link_holds_is_released_once_the_last_first_whatever_fails() -> None:
    released: list[int] = []

    def fails() -> None:
        released.append(2)
        raise OSError

    with ReleaseStack() as releases:
        for n in (1, 3):
            releases.add(partial(released.append, n))
        releases.add(fails)
    assert released == []
    with pytest.raises(OSError):
        releases.close()
    releases.close()
    assert released == [2, 3, 1]
    with pytest.raises(KeyError), ReleaseStack() as releases:
        releases.add(partial(released.append, 4))
        raise KeyError
    assert released == [2, 3, 1, 4]
