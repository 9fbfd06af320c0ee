"""Reads what EDGAR lists: the current-events Atom feed, the daily index files, a company's submissions, the tickers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from lxml import etree
from msgspec import Struct

from producers.edgar.header import ACCESSION
from producers.edgar.items import is_8k
from producers.edgar.times import with_offset_ns
from producers.errors import FeedError, FeedErrorKind
from producers.formats import Listed, ParseContext
from schemas.errors import DecodeError
from schemas.instruments import parse_company_tickers, ten_digits

BASE_URL = "https://www.sec.gov"
ATOM = "{http://www.w3.org/2005/Atom}"
ENTRIES_MOST = 10_000
TITLE_CHARS = 1_000

_TITLE = re.compile(r"(?P<form>.+?) - (?P<company>.*?)\s*\((?P<cik>\d{1,10})\)\s*\((?P<role>[^()]*)\)\s*", re.DOTALL)
_ITEM = re.compile(r"\bItem\s+(\d{1,2}(?:\.\d{2})?)\s*:")
_FILED = re.compile(r"Filed:\s*(?:</b>)?\s*(\d{4}-\d\d-\d\d)")
_INDEX_FILE = re.compile(r"edgar/data/(\d{1,10})/(\d{10}-\d{2}-\d{6})\.txt")
_INDEX_DATE = re.compile(r"\d{4}-?\d\d-?\d\d")
_INDEX_HEAD = re.compile(rb"\s*Description:\s+(?:Master|Daily|Form|Company)[^\n]*Index", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentPage:
    """One page of the current feed.

    Args:
        updated_ns: when SEC made it.
        entries: how many entries it has, before parties of the same filing are joined; a full page has as many as
            were asked for.
        listed: its filings, newest first, each accession once.
    """

    updated_ns: int
    entries: int
    listed: list[Listed]


def submission_url(cik: str, accession: str, base_url: str = BASE_URL) -> str:
    """Return the address of a full submission; any party's CIK leads to it."""
    return f"{base_url}/Archives/edgar/data/{int(cik)}/{accession.replace('-', '')}/{accession}.txt"


def parse_current(data: bytes, base_url: str = BASE_URL) -> CurrentPage:
    """Read a page of the current-events Atom feed.

    Raises:
        FeedError: it is no Atom feed, or not well-formed.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        root = etree.fromstring(data.lstrip(), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise FeedError(FeedErrorKind.MALFORMED, "", f"not well-formed XML: {str(error)[:200]}") from None
    if root.tag != f"{ATOM}feed":
        raise FeedError(FeedErrorKind.MALFORMED, "feed", "the first element is no Atom feed")
    entries = root.findall(f"{ATOM}entry")[:ENTRIES_MOST]
    listed = (_entry(entry, base_url) for entry in entries)
    return CurrentPage(
        updated_ns=with_offset_ns(root.findtext(f"{ATOM}updated", "")),
        entries=len(entries),
        listed=joined(one for one in listed if one is not None),
    )


def joined(listed: Iterator[Listed]) -> list[Listed]:
    """Return each accession once, with the CIKs of all its entries: one filing is listed once per party."""
    found: dict[str, Listed] = {}
    for one in listed:
        known = found.get(one.accession)
        if known is None:
            found[one.accession] = one
        else:
            ciks = list(dict.fromkeys((*known.ciks, *one.ciks)))
            found[one.accession] = msgspec.structs.replace(known, ciks=ciks, items=known.items or one.items)
    return list(found.values())


def _entry(entry: object, base_url: str) -> Listed | None:
    text = entry.findtext  # type: ignore[attr-defined]  # an lxml element, which has no types
    accession = ACCESSION.search(text(f"{ATOM}id", "")) or ACCESSION.search(text(f"{ATOM}summary", ""))
    title = _TITLE.fullmatch(" ".join(text(f"{ATOM}title", "")[:TITLE_CHARS].split()))
    if accession is None or title is None:
        return None
    summary = text(f"{ATOM}summary", "")
    filed = _FILED.search(summary)
    cik = ten_digits(title["cik"])
    return Listed(
        accession=accession[1],
        form=title["form"].strip()[:64],
        ciks=[cik],
        company=title["company"].strip()[:256],
        items=_ITEM.findall(summary) if is_8k(title["form"]) else [],
        updated_ns=with_offset_ns(text(f"{ATOM}updated", "")),
        filed=filed[1] if filed else "",
        url=submission_url(cik, accession[1], base_url),
    )


def parse_index(data: bytes, base_url: str = BASE_URL) -> list[Listed]:
    """Read a daily or full index: ``master`` with its bars, or ``form`` and ``company`` in columns.

    Raises:
        FeedError: it names no filing.
    """
    listed = joined(_index_lines(data.decode("latin-1"), base_url))
    if not listed:
        raise FeedError(FeedErrorKind.MALFORMED, "File Name", "no line of the index names a filing")
    return listed


def _index_lines(text: str, base_url: str) -> Iterator[Listed]:
    for line in text.splitlines():
        found = _INDEX_FILE.search(line)
        if found is None:
            continue
        cik, accession = found.groups()
        before = line[: found.start()]
        if before.count("|") >= 4:
            _, company, form, filed, *_ = (field.strip() for field in before.split("|"))
        else:
            fields = [field for field in re.split(r"\s{2,}", before.strip()) if field]
            dates = [field for field in fields if _INDEX_DATE.fullmatch(field)]
            form, company, filed = fields[0] if fields else "", "", dates[-1] if dates else ""
        filed = filed.replace("-", "")
        yield Listed(
            accession=accession,
            form=form[:64],
            ciks=[ten_digits(cik)],
            company=company[:256],
            filed=f"{filed[:4]}-{filed[4:6]}-{filed[6:8]}" if filed else "",
            url=submission_url(cik, accession, base_url),
        )


class _Columns(Struct, rename="camel"):
    """Parallel lists, one place per filing, newest first."""

    accession_number: list[str]
    form: list[str]
    filing_date: list[str] = []
    report_date: list[str] = []
    items: list[str] = []
    file_number: list[str] = []


class _Filings(Struct):
    recent: _Columns


class CompanySubmissions(Struct, rename="camel"):
    """``CIK##########.json``; its acceptance times are not reliably UTC and are left alone."""

    cik: str | int
    name: str
    filings: _Filings
    tickers: list[str] = []


def parse_submissions(data: bytes) -> CompanySubmissions:
    """Read a company's list of submissions.

    Raises:
        FeedError: it is none.
    """
    try:
        found = msgspec.json.decode(data, type=CompanySubmissions)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FeedError(FeedErrorKind.MALFORMED, "filings.recent", str(error)[:200]) from None
    columns = found.filings.recent
    if len(columns.form) != len(columns.accession_number):
        reason = f"{len(columns.accession_number)} accessions and {len(columns.form)} forms"
        raise FeedError(FeedErrorKind.MALFORMED, "filings.recent", reason)
    return found


def listed_submissions(data: bytes, _: ParseContext) -> list[Listed]:
    """Return the filings of a company's list.

    Raises:
        FeedError: it is none.
    """
    found = parse_submissions(data)
    cik = ten_digits(str(found.cik))
    if not cik:
        raise FeedError(FeedErrorKind.INVALID_VALUE, "cik", "not a CIK")
    columns = found.filings.recent
    return [
        Listed(
            accession=accession,
            form=columns.form[place][:64],
            ciks=[cik],
            company=found.name[:256],
            items=_at(columns.items, place).split(",") if _at(columns.items, place) else [],
            filed=_at(columns.filing_date, place),
            url=submission_url(cik, accession),
        )
        for place, accession in enumerate(columns.accession_number)
        if ACCESSION.fullmatch(accession)
    ]


def _at(column: list[str], place: int) -> str:
    return column[place] if place < len(column) else ""


def parse_tickers(data: bytes) -> dict[str, list[str]]:
    """Read ``company_tickers.json`` (`schemas.instruments.parse_company_tickers`).

    Raises:
        FeedError: it is no such file.
    """
    try:
        return parse_company_tickers(data)
    except DecodeError as error:
        raise FeedError(FeedErrorKind.MALFORMED, error.field, f"no company_tickers.json: {error.reason}") from None


def detect_current(head: bytes) -> bool:
    """Whether a file is a page of EDGAR's current feed, as against any other Atom feed."""
    return b"http://www.w3.org/2005/Atom" in head[:2048] and b"action=getcurrent" in head[:4096]


def detect_index(head: bytes) -> bool:
    """Whether a file is an index of EDGAR."""
    return bool(_INDEX_HEAD.match(head)) or head.lstrip().startswith(b"CIK|Company Name|Form Type|")


def detect_submissions(head: bytes) -> bool:
    """Whether a file is a company's list of submissions."""
    return head.lstrip()[:1] == b"{" and b'"cik"' in head[:512] and b'"entityType"' in head[:4096]


def detect_tickers(head: bytes) -> bool:
    """Whether a file is the map of companies to tickers."""
    return bool(re.match(rb'\s*\{\s*"\d+"\s*:\s*\{\s*"cik_str"', head))


def reject_tickers(data: bytes, _: ParseContext) -> list[Listed]:
    """Reject the map of tickers: it is configuration, not news.

    Raises:
        FeedError: always.
    """
    try:
        count = len(parse_tickers(data))
    except (FeedError, DecodeError) as error:
        raise FeedError(FeedErrorKind.MALFORMED, "", f"a map of companies to tickers, broken: {error}") from None
    reason = f"the tickers of {count:,} companies: name it in edgar.tickers_file, there is no event in it"
    raise FeedError(FeedErrorKind.REFERENCE_DATA, "", reason)
