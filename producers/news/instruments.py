"""Writes the instruments of news items one way: US tickers bare, others with the code of their market."""

from __future__ import annotations

import re

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
