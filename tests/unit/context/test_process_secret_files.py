"""Files of secrets: current, private, replaced as a whole, and gone with their token or their process."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.context.process_secret_files import CurrentSecrets, SecretFiles
from gateway.context.session_folders import SessionFolders
from session_store.redaction import REDACTED
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.calls.parts import turns, until
from transports.upstream_port import UpstreamUnavailable

pytestmark = requirement("cred.refresh")

REFUSED = UpstreamUnavailable("refused")


class Tokens:
    """What the files of one process have: a token, which is renewed, and a word, which is not."""

    def __init__(self, folders: SessionFolders) -> None:
        self.clock = FakeClock()
        self.answers: list[str | Exception] = []
        self.gates: list[asyncio.Event] = []
        """What each renewal waits for, in their order."""
        self.asked = 0
        self.lives_s = 100.0
        first = CurrentSecrets({"files": "token-0", "word": "fixed"}, self.clock() + self.lives_s)
        self.files = SecretFiles(folders, first, {"files"}, self.read, self.clock)

    @property
    def path(self) -> Path:
        return Path(self.files.paths["files"])

    async def read(self) -> CurrentSecrets:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else f"token-{self.asked}"
        if self.gates:
            await self.gates.pop(0).wait()
        if isinstance(answer, Exception):
            raise answer
        return CurrentSecrets({"files": answer}, self.clock() + self.lives_s)


def text(file: str) -> str:
    return os.fsdecode(Path(file).read_bytes())


@pytest.fixture
async def tokens(folders: SessionFolders) -> AsyncIterator[Tokens]:
    found = Tokens(folders)
    yield found
    found.files.close()
    assert not found.files.folder.exists()


async def test_a_file_is_private_and_is_replaced_as_a_whole(tokens: Tokens) -> None:
    path, word = tokens.path, tokens.files.paths["word"]
    assert {str(path.parent), os.path.dirname(word)} == {str(tokens.files.folder)}
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    with path.open() as before:
        await tokens.files.renew()
        assert (before.read(), path.read_text(), text(word)) == ("token-0", "token-1", "fixed")
    tokens.answers = ["token-1"]
    changed = path.stat().st_ino
    await tokens.files.renew()
    assert path.stat().st_ino == changed and len([*path.parent.iterdir()]) == 2, "nothing is written again"
    assert tokens.files.hide("x token-0 token-1 fixed") == f"x {REDACTED} {REDACTED} fixed", "too short"


async def test_what_a_file_has_stays_hidden_however_often_others_are_renewed(folders: SessionFolders) -> None:
    first = {f"name-{number}": f"secret-{number}" for number in range(20)}
    tokens = (CurrentSecrets({"name-0": f"secret-0-{number}"}, 0.0) for number in range(30))

    async def read() -> CurrentSecrets:
        return next(tokens)

    files = SecretFiles(folders, CurrentSecrets(first, 0.0), {"name-0"}, read)
    for _ in range(30):
        await files.renew()
    present = [text(path) for path in files.paths.values()]
    assert present == ["secret-0-29", *[*first.values()][1:]]
    assert files.hide(" ".join(present)) == " ".join([REDACTED] * 20), "one that is part of another, too"
    assert files.hide("secret-0-28") == REDACTED and len(files.known) < 40, "the process may still use it"
    files.close()


async def test_what_the_process_puts_in_place_of_a_file_or_folder_leads_nowhere(
    tokens: Tokens, folders: SessionFolders, tmp_path: Path
) -> None:
    path, outside = tokens.path, tmp_path / "outside"
    outside.write_text("of somebody else")
    path.unlink()
    path.symlink_to(outside)
    await tokens.files.renew()
    assert outside.read_text() == "of somebody else" and not path.is_symlink() and path.read_text() == "token-1"
    path.unlink()
    (path / "in the way").mkdir(parents=True)
    with pytest.raises(UpstreamUnavailable, match="'files' cannot be written") as failed:
        await tokens.files.renew()
    assert "token" not in str(failed.value) and sorted(os.listdir(path.parent)) == ["0", "1"]
    path.parent.rename(moved := path.parent.with_name("moved"))
    path.parent.symlink_to(tmp_path)
    (moved / "0" / "in the way").rmdir()
    (moved / "0").rmdir()
    await tokens.files.renew()
    assert (moved / "0").read_text() == "token-3" and os.listdir(tmp_path) == ["outside"]
    tokens.files.close()
    await folders.close()
    assert outside.read_text() == "of somebody else" and not moved.exists() and not path.parent.is_symlink()


async def test_a_token_that_is_refused_has_no_file_until_there_is_one_again(tokens: Tokens) -> None:
    tokens.answers = [REFUSED]
    with pytest.raises(UpstreamUnavailable, match="refused"):
        await tokens.files.renew()
    assert os.listdir(tokens.files.folder) == ["1"], "what needs no token stays"
    tokens.answers = ["token-0"]
    await tokens.files.renew()
    assert tokens.path.read_text() == "token-0"


@pytest.mark.parametrize(
    ("early", "late"), [("token-early", "token-late"), ("token-early", REFUSED), (REFUSED, "token-of-before")]
)
async def test_a_renewal_that_began_later_knows_more_but_a_refusal_counts_always(
    tokens: Tokens, early: str | Exception, late: str | Exception
) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    tokens.answers, tokens.gates = [early, late], [first, second]
    renewals = [asyncio.create_task(tokens.files.renew()) for _ in range(2)]
    await until(lambda: tokens.asked == 2)
    second.set()
    await asyncio.wait(renewals[1:])
    first.set()
    ended = await asyncio.gather(*renewals, return_exceptions=True)
    is_refused = REFUSED in (early, late)
    assert (tokens.path.read_text() if tokens.path.exists() else REFUSED) == (REFUSED if is_refused else late)
    assert ended[0] == (REFUSED if is_refused else None), "no request is sent whose token has no file"


async def test_a_cancelled_renewal_keeps_no_other_from_being_written(tokens: Tokens) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    tokens.gates = [first, second]
    kept, cancelled = [asyncio.create_task(tokens.files.renew()) for _ in range(2)]
    await until(lambda: tokens.asked == 2)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    first.set()
    await kept
    assert tokens.path.read_text() == "token-1"


async def test_a_token_is_renewed_before_it_expires_while_a_request_is_under_way(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.context.process_secret_files._MISSING_S", 0.001)
    is_busy = True
    looked: list[bool] = []

    def is_needed() -> bool:
        looked.append(is_busy)
        return is_busy

    tokens.lives_s = 0.001
    tokens.answers = ["token-1", "token-2", REFUSED]
    tokens.files.renew_while(is_needed)
    await tokens.files.renew()
    await until(lambda: tokens.asked >= 2)
    await until(lambda: tokens.asked >= 4 and tokens.path.exists())
    is_busy = False
    await until(lambda: not looked[-1])
    asked = tokens.asked
    await turns(100)
    assert tokens.asked == asked and not any(looked[looked.index(False) :]), "nobody needs it"
    assert not tokens.path.exists(), "nobody would learn that it was revoked"
    is_busy, tokens.lives_s = True, -1.0
    monkeypatch.setattr("gateway.context.process_secret_files._LATE_S", 0.001)
    await tokens.files.renew()
    await until(lambda: tokens.asked >= asked + 3)  # another replica is about to replace the token


async def unread() -> CurrentSecrets:
    raise AssertionError("it is not asked for")


async def test_what_is_not_renewed_is_read_once(folders: SessionFolders) -> None:
    files = SecretFiles(folders, CurrentSecrets({"word": "fixed"}, 0.0), (), unread)
    files.renew_while(lambda: True)
    await files.renew()
    assert text(files.paths["word"]) == "fixed"
    files.close()


async def test_a_file_has_the_bytes_of_its_secret(folders: SessionFolders) -> None:
    value = os.fsdecode(b"caf\xe9 \r\n\xc3\xa9")
    files = SecretFiles(folders, CurrentSecrets({"word": value}, 0.0), (), unread)
    assert text(files.paths["word"]) == value and os.listdir(files.folder) == ["0"]
    files.close()


@pytest.mark.parametrize(("broken", "works"), [("open", 0), ("open", 1), ("replace", 0)])
async def test_files_that_cannot_be_made_leave_no_folder(
    folders: SessionFolders, broken: str, works: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real, left = folders.sockets.with_name("f"), getattr(os, broken), [True] * works

    def fails(*given: Any, **more: Any) -> Any:
        if left and left.pop():
            return real(*given, **more)
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched, pytest.raises((OSError, UpstreamUnavailable), match="Too many open files"):
        patched.setattr(os, broken, fails)
        SecretFiles(folders, CurrentSecrets({"word": "fixed"}, 0.0), (), unread)
    await until(lambda: not os.listdir(folder))


async def test_nothing_is_written_once_the_process_has_ended(tokens: Tokens) -> None:
    tokens.gates = [asyncio.Event()]
    goes_on = tokens.gates[0]
    renewal = asyncio.create_task(tokens.files.renew())
    await until(lambda: tokens.asked == 1)
    with tokens.path.open() as opened:
        tokens.files.close()
        assert not tokens.path.exists() and opened.read() == "token-0"
    goes_on.set()
    await renewal
    assert not tokens.files.folder.exists()
