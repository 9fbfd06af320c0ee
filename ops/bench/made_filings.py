"""Filings of our own making, of any size: for measurements and tests."""

from __future__ import annotations

import random
from datetime import datetime

from ops.bench.edgar_stand_in import EASTERN, Filed, Party

COMPANY = Party(cik="0009990001", name="Example Harbour Corp.")
TEXT = (
    "the company reported higher revenue for quarter and expects demand to remain strong in its largest segments while "
    "costs of materials labour freight energy increased operating margin declined compared with prior year period "
    "management believes liquidity is sufficient under credit agreement covenants were met board approved dividend"
)
WORDS = TEXT.split()
INLINE_HEADER = (
    '<div style="display:none"><ix:header><ix:hidden>'
    '<ix:nonNumeric contextRef="c-1" name="dei:AmendmentFlag" id="f-1">false</ix:nonNumeric></ix:hidden>'
    '<ix:resources><xbrli:context id="c-1"><xbrli:entity>'
    '<xbrli:identifier scheme="http://www.sec.gov/CIK">0009990001</xbrli:identifier></xbrli:entity>'
    "<xbrli:period><xbrli:instant>2026-03-31</xbrli:instant></xbrli:period></xbrli:context></ix:resources>"
    "</ix:header></div>"
)
SPAN = "color:#000000;font-family:'Times New Roman',sans-serif;font-size:10pt;font-weight:400;line-height:120%"


def quarterly_html(size: int, seed: int = 1) -> str:
    """Return a quarterly report of about ``size`` bytes as filers' tools write them: spans, tables, inline XBRL."""
    draw = random.Random(seed)  # noqa: S311 - made-up text
    pieces = [
        "<?xml version='1.0' encoding='ASCII'?><html xmlns:ix=\"http://www.xbrl.org/2013/inlineXBRL\">",
        f"<head><title>report</title></head><body>{INLINE_HEADER}",
    ]
    length = sum(map(len, pieces))
    for item in range(1, 10_000):
        piece = _heading(item) + "".join(_paragraph(draw) for _ in range(6)) + _table(draw)
        pieces.append(piece)
        length += len(piece)
        if length >= size:
            break
    return "".join([*pieces, "</body></html>"])


def submission(
    accession: str,
    *,
    form: str = "8-K",
    body: str = "<p>Item 8.01 Other Events</p><p>Example Harbour opened a second pier.</p>",
    accepted: str = "20260302160500",
    company: Party = COMPANY,
    period: str = "20260302",
    ending: str = "</SEC-DOCUMENT>\n",
) -> bytes:
    """Return a full submission with one document."""
    return (
        f"<SEC-DOCUMENT>{accession}.txt : {accepted[:8]}\n<SEC-HEADER>{accession}.hdr.sgml : {accepted[:8]}\n"
        f"<ACCEPTANCE-DATETIME>{accepted}\nACCESSION NUMBER:\t\t{accession}\nCONFORMED SUBMISSION TYPE:\t{form}\n"
        f"PUBLIC DOCUMENT COUNT:\t\t1\nCONFORMED PERIOD OF REPORT:\t{period}\nFILED AS OF DATE:\t\t{accepted[:8]}\n\n"
        f"FILER:\n\n\tCOMPANY DATA:\t\n\t\tCOMPANY CONFORMED NAME:\t\t\t{company.name}\n"
        f"\t\tCENTRAL INDEX KEY:\t\t\t{company.cik}\n\n\tFILING VALUES:\n\t\tFORM TYPE:\t\t{form}\n"
        f"</SEC-HEADER>\n<DOCUMENT>\n<TYPE>{form}\n<SEQUENCE>1\n<FILENAME>d1.htm\n<TEXT>\n<html><body>{body}"
        f"</body></html>\n</TEXT>\n</DOCUMENT>\n{ending}"
    ).encode()


def filed(number: int, *, form: str = "8-K", parties: tuple[Party, ...] = (COMPANY,), **values: str) -> Filed:
    """Return filing number ``number`` as the stand-in server has it."""
    accession = f"0009990001-26-{number:06d}"
    accepted = values.get("accepted", "20260302160500")
    return Filed(
        accession=accession,
        form=form,
        body=submission(accession, form=form, **values),  # type: ignore[arg-type]  # texts only
        parties=parties,
        updated=datetime.strptime(accepted, "%Y%m%d%H%M%S").replace(tzinfo=EASTERN),
    )


def _heading(item: int) -> str:
    return f'<div style="padding:4pt"><span style="{SPAN}">Note {item}. Segment and other information</span></div>'


def _paragraph(draw: random.Random) -> str:
    text = " ".join(draw.choices(WORDS, k=70)).capitalize()
    return f'<div style="margin-bottom:6pt;text-align:justify"><span style="{SPAN}">{text}.</span></div>'


def _table(draw: random.Random) -> str:
    head = "".join(f'<td colspan="3" style="padding:0 1pt"><span style="{SPAN}">{y}</span></td>' for y in (2026, 2025))
    rows = "".join(_row(draw, row) for row in range(12))
    return f'<table style="width:100%"><tr><td colspan="3"></td>{head}</tr>{rows}</table>'


def _row(draw: random.Random, row: int) -> str:
    label = " ".join(draw.choices(WORDS, k=3)).capitalize()
    cells = "".join(
        f'<td style="padding:2px 0"><span style="{SPAN}">$</span></td><td style="padding:2px 0;text-align:right">'
        f'<span style="{SPAN}"><ix:nonFraction contextRef="c-1" name="us-gaap:Value{row}" unitRef="usd" decimals="-6">'
        f'{draw.randrange(10_000_000):,}</ix:nonFraction></span></td><td style="padding:0 1pt"></td>'
        for _ in range(2)
    )
    return f'<tr><td colspan="3" style="padding:2px 1pt"><span style="{SPAN}">{label}</span></td>{cells}</tr>'
