"""Writes instruments one way: US tickers bare, share classes with a dot, others with the code of their market."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from schemas.errors import DecodeError, ErrorKind

_US = frozenset(
    {
        "", "US", "USA", "NYSE", "NASDAQ", "AMEX", "ARCA", "BATS", "CBOE", "NYSEARCA", "NYSEMKT",
        "NYSEAMERICAN", "OTC", "OTCBB", "OTCQB", "OTCQX", "OTCPINK", "XNYS", "XNAS", "XASE", "ARCX", "XNGS", "XNCM",
        "XNMS", "NMS", "NAS", "NYS", "ASE", "NGS",
    }
)  # fmt: skip
"""Names under which US markets come: their tickers share one name space."""
_MARKETS = {"TSX": "XTSE", "TSE": "XTSE", "TSXV": "XTSX", "LSE": "XLON", "LON": "XLON", "FRA": "XFRA", "XETRA": "XETR"}
"""Common names of other markets and their ISO 10383 codes."""
_SYMBOL = re.compile(r"[A-Z0-9]{1,12}(?:[./-][A-Z0-9]{1,4})?")
_MARKET = re.compile(r"[A-Z0-9]{1,12}")
_NOISE = re.compile(r"[^A-Z0-9]")


def instrument(symbol: object, market: object = "") -> str:
    """Return the name of an instrument, or ``""`` when the symbol is none.

    Args:
        symbol: ``DELL``, ``brk-b``, ``NASDAQ:DELL``; share classes come out with a dot (``BRK.B``).
        market: name or ISO 10383 code of the market; ``mic:XTSE`` as NewsML-G2 writes it is fine.
    """
    if not isinstance(symbol, str) or not isinstance(market, str):
        return ""
    place, _, ticker = symbol.strip().upper().rpartition(":")
    place = _NOISE.sub("", market.upper().rpartition(":")[2] or place)
    if not _SYMBOL.fullmatch(ticker) or (place and not _MARKET.fullmatch(place)):
        return ""
    ticker = ticker.replace("-", ".").replace("/", ".")
    if place in _US:
        return ticker
    return f"{_MARKETS.get(place, place)}:{ticker}"


class _Company(Struct):
    cik_str: int | str
    ticker: str


def ten_digits(cik: str) -> str:
    """Return a CIK as ten digits; ``""`` when it is none."""
    cik = cik.strip()
    return cik.zfill(10) if cik.isascii() and cik.isdigit() and len(cik) <= 10 else ""


def parse_company_tickers(data: bytes) -> dict[str, list[str]]:
    """Read SEC's ``company_tickers.json``: instruments per CIK of ten digits, the most traded first, as in the file.

    SEC writes a share class with a hyphen (``BRK-B``); it comes out as everywhere else (``BRK.B``).

    Raises:
        DecodeError: it is no such file; names the field at fault.
    """
    try:
        rows = msgspec.json.decode(data, type=dict[str, _Company])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason, _, path = str(error)[:200].partition(" - at `")
        kind = ErrorKind.INVALID_VALUE if path else ErrorKind.NOT_JSON
        raise DecodeError(kind, path.strip("`$."), reason or "arrays or objects nested too deep") from None
    tickers: dict[str, list[str]] = {}
    for row in rows.values():
        cik, ticker = ten_digits(str(row.cik_str)), instrument(row.ticker)
        if cik and ticker:
            tickers.setdefault(cik, []).append(ticker)
    return tickers
