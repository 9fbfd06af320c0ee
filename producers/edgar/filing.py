"""A submission, or one document of it, to filing events: which documents, which sections, which parts, which times."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import sha256

from producers.edgar import sgml
from producers.edgar.header import ACCESSION, Header, Party, parse_header
from producers.edgar.items import DECIMAL_SINCE, merged
from producers.edgar.parts import cut
from producers.edgar.sections import sections
from producers.edgar.text import DocumentText, decoded, is_html, label, root_of_xml, text_of
from producers.edgar.xml_forms import XmlForm, parse_xml_form
from producers.errors import FeedError, FeedErrorKind
from producers.formats import ParseContext
from schemas.codec import is_readable
from schemas.instruments import ten_digits
from schemas.records import FilingEvent

SKIPPED_TYPES = re.compile(
    r"GRAPHIC|ZIP|EXCEL|XML|JSON|PDF|COVER|CORRESP-PDF|EX-101(?:\..*)?|EX-27(?:\..*)?|.*\.(?:SCH|CAL|DEF|LAB|PRE|INS)",
    re.IGNORECASE,
)
"""Documents that repeat as data what another document says, or hold none of the filer's words: pictures, archives,
XBRL, and the financial data schedules (EX-27) of the 1990s."""
UNKNOWN_FORM = "UNKNOWN"
TITLE_FROM_LINES = 60

XML_ROOTS = frozenset({"ownershipDocument", "edgarSubmission", "informationTable"})
_FORM_TITLE = re.compile(
    r"\W*(?:FORM\s+(\d{1,3}-?[A-Z]{1,3}\d{0,3}|F-\d{1,2}|S-\d{1,2}|[345])|SCHEDULE\s+(13[DG]|14[ACDN]-?\w*|TO))(/A)?"
    r"(?:\s*\(.*\))?\W*(?:\s*amendment\s+no.*)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One part of a filing before it becomes an event."""

    document: int
    section: str
    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Filing:
    """A filing with everything that its events share.

    Args:
        header: what the header says, completed from the documents where there is none.
        items: 8-K item codes of header and body together.
        items_in_body: those of the body alone.
        symbols: trading symbols that the filing itself states.
        pieces: its parts in order.
        left_out: parts past `ParseContext.parts_most`.
    """

    header: Header
    items: list[str]
    items_in_body: list[str]
    symbols: list[str]
    pieces: list[Piece]
    left_out: int = 0

    def events(self, context: ParseContext, amends: str = "") -> list[FilingEvent]:
        """Return the events, numbered through the filing.

        Args:
            context: times, address, tickers.
            amends: accession of the filing that this one amends.
        """
        header = self.header
        company = label(header.subjects[0].name) if header.subjects else ""
        form = label(header.form) or UNKNOWN_FORM
        instruments = self._instruments(context)
        return [
            FilingEvent(
                event_id=f"{header.accession}:{piece.document}:{number}",
                accession=header.accession,
                form=form,
                text=piece.text,
                received_at_ns=context.received_at_ns,
                accepted_at_ns=header.accepted_at_ns,
                items=self.items,
                ciks=header.ciks,
                company=company,
                instruments=instruments,
                section=label(piece.section),
                part=number,
                parts=len(self.pieces),
                amends=amends,
                notes=list(piece.notes),
                url=context.url,
            )
            for number, piece in enumerate(self.pieces, start=1)
        ]

    def _instruments(self, context: ParseContext) -> list[str]:
        about = [party.cik for party in self.header.subjects]
        mapped = [ticker for cik in about for ticker in context.tickers.get(cik, ())]
        return [ticker for ticker in dict.fromkeys(map(label, [*self.symbols, *mapped])) if ticker]


def parse_filing(data: bytes, context: ParseContext) -> Filing:
    """Read a full submission of any era, or a document with its tags alone.

    Raises:
        FeedError: it is cut before its first document, or has no text.
    """
    submission = sgml.split(data)
    header = parse_header(submission.header)
    documents = list(submission.documents())
    if not documents:
        reason = "the header is there and no document follows it" if header.form else "no document in it"
        raise FeedError(FeedErrorKind.MALFORMED, "DOCUMENT", reason)
    return _Reader(header, context, data).read(documents)


def parse_document(data: bytes, context: ParseContext) -> Filing:
    """Read one bare document: HTML, XML or plain text without any tag of a submission.

    Raises:
        FeedError: it has no text, or is XML that is not well-formed.
    """
    document = sgml.Document(type="", sequence=1, filename="", description="", body=data, binary=False)
    return _Reader(Header(), context, data).read([document])


class _Reader:
    """Reads the documents of one filing."""

    def __init__(self, header: Header, context: ParseContext, data: bytes) -> None:
        self._context = context
        self._header = self._identified(header, data)
        self._items: list[str] = []
        self._symbols: list[str] = []
        self._pieces: list[Piece] = []
        self._left_out = 0
        self._failed: FeedError | None = None

    def _identified(self, header: Header, data: bytes) -> Header:
        """Give a filing without a header an accession: from its address, else from its content."""
        if header.accession:
            return header
        found = ACCESSION.search(self._context.url)
        return replace(header, accession=found[1] if found else f"content-{sha256(data).hexdigest()[:20]}")

    def read(self, documents: list[sgml.Document]) -> Filing:
        kept = [
            document for document in documents if not document.binary and not SKIPPED_TYPES.fullmatch(document.type)
        ]
        for document in kept:
            try:
                self._read_document(document)
            except FeedError as error:
                # One broken exhibit does not take the others with it.
                self._failed = self._failed or error
        if not self._pieces:
            kinds = ", ".join(dict.fromkeys(document.type or "without type" for document in documents[:20]))
            raise self._failed or FeedError(FeedErrorKind.NO_TEXT, "TEXT", f"no document with text ({kinds})")
        header = self._header
        if not header.form:
            header = replace(header, form=UNKNOWN_FORM)
        in_body = list(dict.fromkeys(self._items))
        return Filing(
            header=header,
            items=merged(header.items, in_body),
            items_in_body=in_body,
            symbols=list(dict.fromkeys(self._symbols)),
            pieces=self._pieces,
            left_out=self._left_out,
        )

    def _read_document(self, document: sgml.Document) -> None:
        root = root_of_xml(document.body)
        if root in XML_ROOTS or (root and root.lower() != "html" and not is_html(document.body)):
            self._read_xml(document, parse_xml_form(document.body))
            return
        text = text_of(document.body)
        self._learn(document, text)
        self._add(document, text)

    def _learn(self, document: sgml.Document, text: DocumentText) -> None:
        """Take over what the document says about itself where the header does not."""
        facts = text.facts
        self._symbols.extend(symbol.upper() for symbol in facts.get("symbol", ()) if len(symbol) <= 16)
        header = self._header
        if not header.form:
            stated = document.type or next(iter(facts.get("form", ())), "") or _form_in(text.lines)
            header = replace(header, form=stated[:64])
        if not header.parties:
            company, cik = (next(iter(facts.get(name, ())), "") for name in ("company", "cik"))
            if company or ten_digits(cik):
                header = replace(header, parties=(Party(role="filer", cik=ten_digits(cik), name=company),))
        self._header = header

    def _read_xml(self, document: sgml.Document, form: XmlForm) -> None:
        header = self._header
        if not header.form:
            header = replace(header, form=(form.form or document.type)[:64])
        if not header.parties:
            roles = ["issuer", *["owner"] * len(form.ciks)]
            parties = [Party(role=role, cik=cik) for role, cik in zip(roles, form.ciks, strict=False)]
            parties = parties or [Party(role="issuer")]
            parties[0] = replace(parties[0], name=form.company)
            header = replace(header, parties=tuple(parties))
        self._header = replace(header, period=header.period or form.period)
        self._symbols.extend(form.symbols)
        section = document.type if document.type != self._header.form else ""
        self._cut(document, section, [line for line in form.lines if line], ())

    def _add(self, document: sgml.Document, text: DocumentText) -> None:
        exhibit = document.type.upper().startswith("EX-")
        notes = tuple(f"text: {change}" for change in text.changes)
        filed = self._header.filed
        decimal = filed >= DECIMAL_SINCE if filed else None
        for section in sections("" if exhibit else self._header.form, text.lines, decimal=decimal):
            if section.item and not exhibit:
                self._items.append(section.item)
            name = _exhibit_name(document) if exhibit else section.name
            self._cut(document, name, text.lines[section.start : section.end], notes)

    def _cut(self, document: sgml.Document, section: str, lines: list[str], notes: tuple[str, ...]) -> None:
        for text in cut(lines, self._context.part_chars):
            if not is_readable(text):
                continue
            if len(self._pieces) < self._context.parts_most:
                self._pieces.append(Piece(document=document.sequence, section=section, text=text, notes=notes))
            else:
                self._left_out += 1


def _exhibit_name(document: sgml.Document) -> str:
    described = document.description
    if not described or described.upper().replace(" ", "") in (document.type.upper(), "EXHIBIT" + document.type[3:]):
        return document.type
    return f"{document.type} {described}"


def _form_in(lines: list[str]) -> str:
    """Return the form type that the cover page prints; ``""`` when it prints none."""
    for line in lines[:TITLE_FROM_LINES]:
        if found := _FORM_TITLE.fullmatch(line):
            form, schedule, amended = found.groups()
            return (form.upper() if form else f"SC {schedule.upper()}") + (amended or "").upper()
    return ""


def sec_markers(head: bytes) -> bool:
    """Whether the start of a bare HTML document is that of something filed with the SEC."""
    return b"<ix:header" in head or b"xbrl.sec.gov" in head or _names_commission(decoded(head))


def sec_text(head: bytes) -> bool:
    """Whether the start of a plain text is that of something filed with the SEC: it names the commission and a form."""
    if head.lstrip()[:1] in (b"{", b"[", b"<"):
        return False
    text = decoded(head[:16384])
    return _names_commission(text) and bool(_form_in(text.splitlines()))


def _names_commission(text: str) -> bool:
    return "SECURITIES AND EXCHANGE COMMISSION" in re.sub(r"\s+|&NBSP;|<[^<>]*>", " ", text.upper())
