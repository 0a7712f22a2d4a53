"""How likely a key is as written text: never so likely that random keys are refused."""

import string

from gateway.sessions.word_keys import _share, written_bits
from tests.requirements import requirement

pytestmark = requirement("cli.session-key-anonymous")

CHARACTERS = string.ascii_letters + string.digits + "-_+/="


def test_the_shares_of_all_characters_are_one_at_most_so_that_few_random_keys_look_written() -> None:
    # Markov's inequality needs nothing else: at most one random key in 2^b is 2^b times likelier as written text. Texts
    # without small letters have the shares of small ones: with them it is one in 2^(b-1).
    for before in CHARACTERS:
        assert sum(_share(before, after) for after in CHARACTERS) <= 1 + 1e-9, before


def test_words_and_dates_are_likelier_as_written_text_than_as_random_text() -> None:
    for text in ("TheNightlyReportOfTheTeam", "my-production-agent-session", "THE_NIGHTLY_REPORT_2024"):
        assert written_bits(text) < 6 * len(text) - 22, text
    assert written_bits("") == 0.0
