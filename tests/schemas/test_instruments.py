"""Names of instruments: one spelling for one instrument, and none for what is no symbol."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import DecodeError
from schemas.instruments import instrument, parse_company_tickers


@pytest.mark.parametrize(
    ("symbol", "market", "name"),
    [
        ("DELL", "NASDAQ", "DELL"),
        ("NYSE:kstv", "", "KSTV"),
        ("BRK.B", "", "BRK.B"),
        ("BRK-B", "NYSE", "BRK.B"),
        ("brk/b", "mic:XNYS", "BRK.B"),
        ("AWG", "mic:XTSE", "XTSE:AWG"),
        ("AWG", "TSX", "XTSE:AWG"),
        ("LSE:VOD", "", "XLON:VOD"),
        ("7203", "XTKS", "XTKS:7203"),
    ],
)
def test_one_instrument_has_one_name(symbol: str, market: str, name: str) -> None:
    """US tickers are bare, share classes have a dot, and other markets keep their code, so that AWG is not AWG."""
    assert instrument(symbol, market) == name


@pytest.mark.parametrize("symbol", ["", "Acme Widget Sales Inc", "<b>", "A\nB", "X" * 40, None, 7, ["A"]])
def test_what_is_no_symbol_gives_none(symbol: object) -> None:
    """Names, markup and values of another type are left out."""
    assert instrument(symbol) == ""


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_gives_a_safe_name_or_none(symbol: str, market: str) -> None:
    """Whatever a vendor sends, the name is short printable ASCII."""
    name = instrument(symbol, market)
    assert name.isascii()
    assert len(name) <= 32
    assert not set(name) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:")


def test_company_tickers_come_with_one_spelling() -> None:
    """CIKs have ten digits, share classes a dot, the file's order stays, and rows without a symbol are left out."""
    data = (
        b'{"0":{"cik_str":1067983,"ticker":"BRK-B","title":"B"},"1":{"cik_str":"1067983","ticker":"brk-a"},'
        b'"2":{"cik_str":5,"ticker":"<b>"},"3":{"cik_str":"x","ticker":"X"}}'
    )
    assert parse_company_tickers(data) == {"0001067983": ["BRK.B", "BRK.A"]}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"not json", ""),
        (b"[]", ""),
        (b"\xff", ""),
        (b'{"0":{"cik_str":5}}', "[...]"),
        (b'{"0":{"cik_str":5,"ticker":7}}', "[...].ticker"),
    ],
)
def test_what_is_no_ticker_map_is_a_typed_error(data: bytes, field: str) -> None:
    """The error names the field at fault."""
    with pytest.raises(DecodeError) as caught:
        parse_company_tickers(data)
    assert caught.value.field == field
