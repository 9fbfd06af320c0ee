"""Instruments of an event that brings none: from its CIKs, else from how its text writes them, never from a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from schemas.errors import ConfigError, DecodeError
from schemas.instruments import instrument, parse_company_tickers, ten_digits

SETTING = "scheduler.company_tickers"
READ_CHARS = 20_000
"""Of a text that is searched: cover pages and first paragraphs name the exchange and the ticker."""
MOST_FOUND = 8
"""Instruments of one text; a market report that names fifty is about none of them."""

_TICKER = r"[A-Z]{1,5}(?:[./-][A-Z]{1,2})?"
_EXCHANGE = (
    r"(?:NYSE(?:[ ](?:American|Arca|MKT))?|NASDAQ|Nasdaq(?:G[SM])?|AMEX|OTC(?:QB|QX|BB)?|New[ ]York[ ]Stock[ ]Exchange)"
    r"(?:[ ](?:Global[ ](?:Select[ ])?|Capital[ ])?(?:Stock[ ])?Market)?"
)
_NAMED = re.compile(
    rf"\b{_EXCHANGE}(?:[ ]?[:\uff1a]|[ ]under[ ]the[ ]symbol)[ ]?[\"\u201c']?(?P<ticker>{_TICKER})(?![A-Za-z0-9])"
)
"""``(NYSE: BRK.B)``, ``Nasdaq: AAPL``, ``New York Stock Exchange under the symbol "DAL"``."""
_CASHTAG = re.compile(rf"(?<![A-Za-z0-9$])\$(?P<ticker>{_TICKER}|[a-z]{{1,5}}(?:\.[a-z])?)(?![A-Za-z0-9])")
_SCALES = frozenset({"K", "M", "B", "T", "MM", "MN", "BN", "TN", "USD"})


class Instruments:
    """Finds instruments for events that bring none.

    Args:
        tickers: instruments per CIK of ten digits (`load_instruments`).
    """

    def __init__(self, tickers: dict[str, list[str]] | None = None) -> None:
        self._tickers = tickers or {}

    def of(self, given: list[str], ciks: Iterable[str], texts: Iterable[str]) -> list[str]:
        """Return the instruments of an event, the primary one first.

        Args:
            given: what the event brings; taken as it is, unless it is empty.
            ciks: filers; the first one that the map knows decides.
            texts: read last, and only their beginnings.
        """
        if given:
            return given
        for cik in ciks:
            if known := self._tickers.get(ten_digits(cik)):
                return known
        found: dict[str, None] = {}
        for text in texts:
            for ticker in in_text(text):
                found[ticker] = None
        return list(found)[:MOST_FOUND]


def load_instruments(path: Path | None) -> Instruments:
    """Read ``company_tickers.json``; without one, CIKs name nothing.

    Raises:
        ConfigError: the file cannot be read, or a field of it is wrong.
    """
    if path is None:
        return Instruments()
    try:
        return Instruments(parse_company_tickers(path.read_bytes()))
    except OSError as error:
        raise ConfigError(SETTING, f"{path}: {error.strerror or error}") from None
    except DecodeError as error:
        field = f" field {error.field}:" if error.field else ""
        raise ConfigError(SETTING, f"{path}:{field} {error.reason}") from None


def in_text(text: str) -> list[str]:
    """Return the instruments that a text writes as such: behind an exchange's name, or as a cashtag.

    Words in capitals alone are none. All spellings of a share class come out with a dot: ``BRK.B``.
    """
    head = text[:READ_CHARS]
    found: dict[int, str] = {match.start(): match["ticker"] for match in _NAMED.finditer(head)}
    for match in _CASHTAG.finditer(head):
        if match["ticker"].upper() not in _SCALES:
            found[match.start()] = match["ticker"]
    names = (instrument(ticker) for _, ticker in sorted(found.items()))
    return list(dict.fromkeys(name for name in names if name))[:MOST_FOUND]
