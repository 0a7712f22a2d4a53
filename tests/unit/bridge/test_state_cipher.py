"""`gateway.bridge.state_cipher`: what it seals the SDK's codec opens and the reverse, and nothing else is opened."""

import pytest
from mcp.server.request_state import AESGCMRequestStateCodec

from gateway.bridge.state_cipher import InvalidSeal, StateCipher
from tests.requirements import requirement

OLD, NEW = b"o" * 32, b"n" * 32
CONTENT = b'{"session":"s"}'


@requirement("id.purpose")
@pytest.mark.parametrize("content", [b"", CONTENT, bytes(range(256))])
def test_the_format_is_that_of_the_sdk(content: bytes) -> None:
    codec, cipher = AESGCMRequestStateCodec([NEW, OLD]), StateCipher([NEW, OLD])
    assert codec.unseal(cipher.seal(content)) == content
    assert cipher.open(codec.seal(content)) == content


def test_older_keys_open_and_keys_that_have_left_the_ring_do_not() -> None:
    old = StateCipher([OLD])
    sealed = old.seal(CONTENT)
    assert StateCipher([NEW, OLD]).open(sealed) == CONTENT
    with pytest.raises(InvalidSeal):
        StateCipher([NEW]).open(sealed)
    assert old.seal(CONTENT) != sealed, "it is sealed anew each time"


def test_no_changed_text_is_opened_nor_one_that_was_never_sealed() -> None:
    """Each single character is replaced, left out and doubled: the format, the name, the nonce, the bytes, the tag."""
    cipher = StateCipher([NEW])
    for text in ("", ".", "v1", "v1.", "v1.AAAA", "v2.AAAA", "v1.é", "v1.!", "v1.===", "v1.A A"):
        with pytest.raises(InvalidSeal):
            cipher.open(text)
    sealed = cipher.seal(CONTENT)
    for place, character in enumerate(sealed):
        other = "B" if character != "B" else "C"
        for changed in (other, "", character * 2):
            with pytest.raises(InvalidSeal):
                cipher.open(sealed[:place] + changed + sealed[place + 1 :])
