"""What a process gets of its session."""

from typing import Any

import pytest

from gateway.context.link_resources import LinkResourceProvider
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.inbound.unauthenticated_limits import Limits
from transports.upstream_port import UpstreamUnavailable


@requirement("cred.refresh")
@pytest.mark.anyio
async def test_a_launcher_gets_no_folder_of_files_that_its_process_does_not_have() -> None:
    parts: list[Any] = [None, None, Limits(), None]
    with pytest.raises(UpstreamUnavailable, match=r"its launcher names \{secret_dir\}"):
        await LinkResourceProvider(*parts).for_child(a_session(FakeClock()), {}, {}, ["x", "--bind={secret_dir}", "--"])
