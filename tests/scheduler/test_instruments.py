"""Instruments of events that bring none: CIKs first, then what a text writes as an instrument, nothing invented."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.instruments import MOST_FOUND, READ_CHARS, Instruments, in_text, load_instruments
from schemas.errors import ConfigError

MAP = b'{"0":{"cik_str":1067983,"ticker":"BRK-B","title":"BERKSHIRE"},"1":{"cik_str":320193,"ticker":"AAPL"}}'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Berkshire Hathaway (NYSE: BRK.B) said", ["BRK.B"]),
        ("Berkshire Hathaway (NYSE: BRK-B; BRK-A)", ["BRK.B"]),
        ("Berkshire (NYSE:BRK/B) said", ["BRK.B"]),
        ("Apple (Nasdaq: AAPL) and Delta (NYSE: DAL)", ["AAPL", "DAL"]),
        ("NASDAQ Global Select Market: ADBE", ["ADBE"]),
        ("listed on the New York Stock Exchange under the symbol \u201cDAL\u201d", ["DAL"]),
        ("Buy $BRK.B and $AAPL, $aapl!", ["BRK.B", "AAPL"]),
        ("$TSLA leads, Nasdaq: AAPL follows", ["TSLA", "AAPL"]),
    ],
)
def test_ways_of_writing_an_instrument(text: str, found: list[str]) -> None:
    """Exchange forms and cashtags, in the order of the text, every spelling of a share class with a dot."""
    assert in_text(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "CEO SAYS IPO OF AI UNIT ON HOLD",
        "Revenue was $5M, up from US$ABC or $1.2B and $B",
        "The NYSE said on Monday",
        "NYSE: the exchange opens late",
        "costs A$AP or $$AAPL, or $TOOLONGNAME",
        "PRE$AAPL",
    ],
)
def test_words_in_capitals_are_no_instruments(text: str) -> None:
    """Nothing becomes a ticker that the text does not write as one."""
    assert in_text(text) == []


def test_the_event_knows_best_then_its_filers_then_its_text() -> None:
    """What an event brings is taken as it is; the CIK map comes before the text."""
    known = Instruments({"0000320193": ["AAPL"]})
    text = ["Delta (NYSE: DAL)", "and $UAL"]
    assert known.of(["XTSE:AWG"], ["320193"], text) == ["XTSE:AWG"]
    assert known.of([], ["0000000001", "320193"], text) == ["AAPL"]
    assert known.of([], ["0000000001", "not a CIK"], text) == ["DAL", "UAL"]
    assert known.of([], [], []) == []


def test_only_the_beginning_of_a_text_is_searched() -> None:
    """A long text costs no more than its first pages, and gives a bounded number of instruments."""
    assert in_text("x" * READ_CHARS + " (NYSE: DAL)") == []
    assert len(in_text(" ".join(f"$A{chr(65 + n % 26)}{chr(65 + n // 26)}" for n in range(60)))) == MOST_FOUND


@given(st.text(alphabet="$NYSE: Nasdaq:BRK.B-/(a) ", max_size=200))
def test_any_text_gives_names_that_stand_in_it(text: str) -> None:
    """Every instrument is spelled in the text."""
    spelled = text.upper().replace("-", ".").replace("/", ".")
    assert all(name in spelled for name in in_text(text))


def test_the_map_of_tickers_is_loaded_once(tmp_path: Path) -> None:
    """SEC's file names filings by their CIK, in our spelling."""
    path = tmp_path / "company_tickers.json"
    path.write_bytes(MAP)
    assert load_instruments(path).of([], ["0001067983"], []) == ["BRK.B"]
    assert load_instruments(None).of([], ["0001067983"], []) == []


@pytest.mark.parametrize(
    ("content", "what"), [(b"[]", "company"), (b'{"0":{"cik_str":1}}', "ticker"), (None, "No such file")]
)
def test_a_bad_map_is_an_error_that_names_file_and_field(tmp_path: Path, content: bytes | None, what: str) -> None:
    """An operator reads which setting, which file and what is wrong with it."""
    path = tmp_path / "company_tickers.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=what) as caught:
        load_instruments(path)
    assert caught.value.setting == "scheduler.company_tickers"
    assert str(path) in caught.value.reason
