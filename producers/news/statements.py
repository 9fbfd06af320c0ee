"""Central-bank statements: which news is one, its text out of a page, and the sentences that changed since the last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from typing import Any

from lxml import etree

from producers.clean import clean
from producers.errors import FeedError, FeedErrorKind
from producers.news.item import Defaults, ItemBuilder, NewsItem
from producers.news.markup import element_text, local_name
from schemas.records import Nanoseconds

HIGHEST_URGENCY = 1
MAX_STATEMENT_CHARS = 40_000
"""A statement has 2,000 to 10,000 characters; more is a page that was not understood."""
MIN_STATEMENT_CHARS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Bank:
    """One central bank.

    Args:
        source: name of its events' source.
        feed: its press feed.
        series: names the chain of its statements.
        title: matches the headline of a statement's press item.
        sign: matches the text of a statement.
        headline: of a statement that comes without one.
        articles: ids and classes of the page element that holds the press release, best first.
        end: matches where a statement's text is over.
        dates: matches the day of a statement in its text.
    """

    source: str
    feed: str
    series: str
    title: re.Pattern[str]
    sign: re.Pattern[str]
    headline: str
    articles: tuple[str, ...]
    end: re.Pattern[str]
    dates: re.Pattern[str]


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_MONTH = "|".join(_MONTHS)

BANKS = {
    "fed": Bank(
        source="fed",
        feed="https://www.federalreserve.gov/feeds/press_all.xml",
        series="fed-statement",
        title=re.compile(r"\bFOMC statement\b", re.IGNORECASE),
        sign=re.compile(r"\bFederal Open Market Committee\b|\b[Tt]he Committee (?:today )?decided to\b"),
        headline="Federal Reserve issues FOMC statement",
        articles=("article", "content"),
        end=re.compile(r"^(?:For media inquiries|Implementation Note issued|Last Update:)", re.MULTILINE),
        dates=re.compile(rf"Implementation Note issued (?P<month>{_MONTH}) (?P<day>\d\d?), (?P<year>\d{{4}})"),
    ),
    "ecb": Bank(
        source="ecb",
        feed="https://www.ecb.europa.eu/rss/press.html",
        series="ecb-statement",
        title=re.compile(r"^(?:Combined )?Monetary policy decisions\b", re.IGNORECASE),
        sign=re.compile(r"\bThe Governing Council (?:today )?decided to\b"),
        headline="Monetary policy decisions",
        articles=("main-wrapper", "section"),
        end=re.compile(r"^(?:CONTACT|#* ?Related topics|Reproduction is permitted)\b", re.MULTILINE | re.IGNORECASE),
        dates=re.compile(rf"^(?P<day>\d\d?) (?P<month>{_MONTH}) (?P<year>\d{{4}})$", re.MULTILINE),
    ),
}

_RATES = re.compile(r"\b(?:federal funds rate|key ECB interest rates)\b")
_NOT_AN_END = re.compile(r"(?:\b[A-Z]|\b(?:U\.S|[ap]\.m|Mr|Ms|Mrs|Dr|No|vs|e\.g|i\.e))\.$")
_END = re.compile(r"(?<=[.!?])[\"'”’)]?\s+(?=[\"'“‘(]?[A-Z0-9])")  # noqa: RUF001 - quotation marks as they are written
_CLOSED = re.compile(r"[.!?][\"'”’)]*$")  # noqa: RUF001 - as above
_HYPHENS = re.compile("[\u2010-\u2015\u2212]")
_QUOTES = {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'}
_RULE = re.compile(r"^[\s*=\-_#\\]+$")
_LIST = re.compile(r"^(?:[*#]+\s+|\\\*)+")
_ANY_WORD = re.compile(r"[A-Za-z]")
REWORDED = 0.4
"""Sentences that share less than this (difflib ratio over words) are another sentence, not the same one reworded."""


DROPPED = "No longer said: "
"""Starts a sentence of the old statement that has no counterpart in the new one; what is left out is news as well."""


def statement_bank(headline: str, bank: str) -> Bank | None:
    """Return the bank whose statement a press item with this headline announces; None for its other news."""
    found = BANKS.get(bank)
    return found if found and found.title.search(headline) else None


def statement_in_page(page: bytes, bank: Bank) -> str:
    """Return the statement's text out of a press release's page.

    Raises:
        FeedError: there is no statement of that bank in it.
    """
    parser: Any = etree.HTMLParser(no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = etree.fromstring(page.replace(b"\x00", b""), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise FeedError(FeedErrorKind.MALFORMED, "page", f"not HTML: {error}"[:200]) from None
    for element in () if root is None else _articles(root, bank):
        text = statement_text("\n\n".join(_paragraphs(element)), bank)
        if MIN_STATEMENT_CHARS <= len(text) <= MAX_STATEMENT_CHARS and bank.sign.search(text):
            return text
    raise FeedError(FeedErrorKind.NO_TEXT, "page", f"no statement of {bank.source} in it")


def _articles(root: Any, bank: Bank) -> list[Any]:
    named = [
        element
        for name in bank.articles
        for element in root.iter()
        if isinstance(element.tag, str) and name in (element.get("id") or "", *(element.get("class") or "").split())
    ]
    return [*named, *(e for e in root.iter() if local_name(e.tag) in ("main", "article")), root]


def _paragraphs(element: Any) -> list[str]:
    """Return the texts of the paragraphs: press pages keep menus, dates and links out of them."""
    return [text for p in element.iter("p") if (text := element_text(p))]


def statement_text(text: str, bank: Bank) -> str:
    """Return a statement's own text: without rules, underlines, what stands above it and what follows its end."""
    text = clean(text).text
    lines = [_LIST.sub("", line) for line in text.split("\n") if not _RULE.match(line) or not line]
    # What stands above the first sentence is "For release at", the date, the title.
    first = next((number for number, line in enumerate(lines) if _CLOSED.search(line)), 0)
    text = "\n".join(lines[first:])
    end = bank.end.search(text)
    return text[: end.start() if end else None].strip()


def sentences(text: str) -> list[str]:
    """Split a statement into sentences; initials (``Jerome H. Powell``) and ``U.S.`` end none.

    Lines that do not end as a sentence (dates, headings, ``For release at``) are left out: they change every time.
    """
    found: list[str] = []
    for paragraph in text.split("\n"):
        start = 0
        for end in _END.finditer(paragraph):
            head = paragraph[start : end.start()]
            if not _NOT_AN_END.search(head):
                found.append(head.strip())
                start = end.end()
        found.append(paragraph[start:].strip())
    return [sentence for sentence in found if _ANY_WORD.search(sentence) and _CLOSED.search(sentence)]


def changed_sentences(before: str, after: str) -> list[str]:
    """Return what is different in the newer of two statements.

    Its new and reworded sentences in their order, then the dropped ones, marked with `DROPPED`.
    """
    old, new = sentences(before), sentences(after)
    kept = {_plain(sentence) for sentence in old} & {_plain(sentence) for sentence in new}
    gone = [sentence for sentence in old if _plain(sentence) not in kept]
    changed = [sentence for sentence in new if _plain(sentence) not in kept]
    for sentence in changed:
        if reworded := _closest(sentence, gone):
            gone.remove(reworded)
    return [*changed, *(f"{DROPPED}{sentence}" for sentence in gone)]


def _closest(sentence: str, candidates: Sequence[str]) -> str:
    words = _plain(sentence).split()
    best, best_ratio = "", REWORDED
    for candidate in candidates:
        matcher = SequenceMatcher(None, words, _plain(candidate).split(), autojunk=False)
        if matcher.real_quick_ratio() > best_ratio and (ratio := matcher.ratio()) > best_ratio:
            best, best_ratio = candidate, ratio
    return best


def _plain(sentence: str) -> str:
    """Return the sentence as it is compared: which hyphen, quotation mark or blank was typed says nothing."""
    return " ".join(_HYPHENS.sub("-", sentence).translate(_QUOTES).split()).lower()


def bank_of_text(head: bytes) -> Bank | None:
    """Return the bank whose statement a plain-text file holds, told by its words; None for anything else."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"<", b"{", b"[", b""):
        return None
    text = head.decode("utf-8", "ignore")
    if not _RATES.search(text):
        return None
    return next((bank for bank in BANKS.values() if bank.sign.search(text)), None)


def is_statement(head: bytes) -> bool:
    """Return whether a file is the plain text of a central bank's statement."""
    return len(head) <= MAX_STATEMENT_CHARS and bank_of_text(head) is not None


def statement_items(data: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> list[NewsItem]:
    """Read a plain-text file with one statement.

    Raises:
        FeedError: it is too large, not UTF-8, or no statement that is known.
    """
    bank = bank_of_text(data)
    if bank is None or len(data) > MAX_STATEMENT_CHARS:
        raise FeedError(FeedErrorKind.UNKNOWN_FORMAT, "", "no central bank's statement")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FeedError(FeedErrorKind.MALFORMED, "", f"byte {error.start} is not UTF-8") from None
    item = ItemBuilder(defaults, received_at_ns)
    item.set_body(text)
    day = bank.dates.search(item.body)
    if day:
        story = f"{day['year']}-{_MONTHS.index(day['month']) + 1:02d}-{int(day['day']):02d}"
    else:
        story = sha256(item.body.encode()).hexdigest()[:16]
    item.set_headline(bank.headline)
    item.body = statement_text(item.body, bank)
    item.urgency = HIGHEST_URGENCY
    item.statement = bank.series
    return [item.build(source=bank.source, story=f"{bank.series}-{story}")]
