"""Reads a submission's header in both dialects: indented labels (``<SEC-HEADER>``) and tags (``<SUBMISSION>``)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from producers.edgar.items import code_of_title
from producers.edgar.times import acceptance_ns, compact_date
from schemas.instruments import ten_digits

HEADER_BYTES = 4 * 1024 * 1024
"""Headers of submissions with thousands of co-registrants reach hundreds of kilobytes; this is far above any."""
PARTIES_MOST = 5_000

ACCESSION = re.compile(r"\b(\d{10}-\d{2}-\d{6})\b")

ROLES = {
    "FILER": "filer",
    "SUBJECT COMPANY": "subject",
    "SUBJECT-COMPANY": "subject",
    "FILED BY": "filed_by",
    "FILED-BY": "filed_by",
    "FILED FOR": "filed_for",
    "FILED-FOR": "filed_for",
    "ISSUER": "issuer",
    "REPORTING-OWNER": "owner",
    "REPORTING OWNER": "owner",
    "DEPOSITOR": "depositor",
    "SECURITIZER": "securitizer",
    "UNDERWRITER": "underwriter",
}
SUBJECT_ROLES = frozenset({"subject", "issuer", "filer"})
"""Parties whose securities a filing is about; those who only hand it in move no price of their own by it."""

_FIELDS = {
    "ACCESSION NUMBER": "accession",
    "ACCESSION-NUMBER": "accession",
    "CONFORMED SUBMISSION TYPE": "form",
    "TYPE": "form",
    "ACCEPTANCE-DATETIME": "accepted",
    "FILED AS OF DATE": "filed",
    "FILING-DATE": "filed",
    "CONFORMED PERIOD OF REPORT": "period",
    "PERIOD": "period",
    "ITEM INFORMATION": "item",
    "ITEMS": "item",
}
_PARTY_FIELDS = {
    "COMPANY CONFORMED NAME": "name",
    "CONFORMED-NAME": "name",
    "CENTRAL INDEX KEY": "cik",
    "CIK": "cik",
    "FORM TYPE": "form",
    "FORM-TYPE": "form",
    "SEC FILE NUMBER": "file_number",
    "FILE-NUMBER": "file_number",
}
_TAG = re.compile(r"<(/?)([A-Z][A-Z0-9-]*)>([^<\n]*)")
_LABEL = re.compile(r"([ \t]*)([A-Z][A-Z0-9 ,.'/&()-]*?):[ \t]*(.*)")
_FILE_NAME = re.compile(r"<(?:SEC|IMS)-(?:DOCUMENT|HEADER)>(\S+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Party:
    """A company or person that a submission names.

    Args:
        role: one of the values of `ROLES`.
        cik: ten digits.
        name: conformed name.
        form: form under which it is filed for this party; can differ from the submission's.
        file_number: SEC file number of that form.
    """

    role: str
    cik: str = ""
    name: str = ""
    form: str = ""
    file_number: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a header says; whatever it does not say is empty.

    Args:
        accession: ``0000320193-24-000123``.
        form: submission type, amendment mark included.
        accepted_at_ns: acceptance, UTC nanoseconds; 0 when the dialect or the era has none.
        filed: ``YYYY-MM-DD``.
        period: period of report, ``YYYY-MM-DD``.
        items: item codes in the header's order.
        parties: in the header's order.
    """

    accession: str = ""
    form: str = ""
    accepted_at_ns: int = 0
    filed: str = ""
    period: str = ""
    items: tuple[str, ...] = ()
    parties: tuple[Party, ...] = ()

    @property
    def subjects(self) -> tuple[Party, ...]:
        """The parties that the filing is about, one per CIK; all of them when no role says so."""
        about = [party for party in self.parties if party.role in SUBJECT_ROLES] or self.parties
        # A filer that is also a subject's acquirer comes second: the subject is whose price moves.
        ordered = sorted(about, key=lambda party: party.role == "filer")
        return tuple({party.cik or party.name: party for party in reversed(ordered)}.values())[::-1]

    @property
    def ciks(self) -> list[str]:
        """Every CIK once, those the filing is about first."""
        return list(dict.fromkeys(party.cik for party in (*self.subjects, *self.parties) if party.cik))


@dataclass(slots=True)
class _Builder:
    values: dict[str, str] = field(default_factory=dict)
    items: list[str] = field(default_factory=list)
    parties: list[dict[str, str]] = field(default_factory=list)
    in_party: bool = False

    def section(self, role: str) -> None:
        if len(self.parties) < PARTIES_MOST:
            self.parties.append({"role": role})
        self.in_party = True

    def field(self, label: str, value: str) -> None:
        value = " ".join(value.split())
        if not value:
            return
        if self.in_party:
            if name := _PARTY_FIELDS.get(label):
                self.parties[-1].setdefault(name, value)
        elif name := _FIELDS.get(label):
            if name == "item":
                self.items.append(value)
            else:
                self.values.setdefault(name, value)

    def header(self) -> Header:
        values = self.values
        filed = compact_date(values.get("filed", ""))
        form = values.get("form", "")
        codes = (code_of_title(item, form, filed) for item in self.items)
        return Header(
            accession=_accession(values.get("accession", "")),
            form=form[:64],
            accepted_at_ns=acceptance_ns(values.get("accepted", "")),
            filed=filed,
            period=compact_date(values.get("period", "")),
            items=tuple(dict.fromkeys(code for code in codes if code)),
            parties=tuple(_party(party) for party in self.parties),
        )


def parse_header(raw: bytes) -> Header:
    """Read a header of either dialect; an empty or a foreign one gives an empty `Header`."""
    text = raw[:HEADER_BYTES].decode("utf-8", "replace")
    builder = _Builder()
    if name := _FILE_NAME.search(text):
        builder.values["accession_of_file"] = name[1]
    if text.lstrip().upper().startswith("<SUBMISSION>"):
        _read_tags(text, builder)
    else:
        _read_labels(text, builder)
    if not _accession(builder.values.get("accession", "")):
        builder.values["accession"] = builder.values.get("accession_of_file", "")
    return builder.header()


def _read_tags(text: str, builder: _Builder) -> None:
    """Read ``<TAG>value``; only sections are closed, data tags end at the next tag."""
    for closing, tag, value in _TAG.findall(text):
        if closing:
            if tag in ROLES:
                builder.in_party = False
        elif tag in ROLES and not value.strip():
            builder.section(ROLES[tag])
        else:
            builder.field(tag, value)


def _read_labels(text: str, builder: _Builder) -> None:
    for line in text.splitlines():
        if tag := _TAG.match(line.strip()):
            builder.field(tag[2], tag[3])
        elif label := _LABEL.fullmatch(line):
            indent, name, value = label.groups()
            if not indent and not value.strip() and name in ROLES:
                builder.section(ROLES[name])
            elif not indent and name in _FIELDS:
                builder.in_party = False
                builder.field(name, value)
            else:
                builder.field(name, value)


def _party(values: dict[str, str]) -> Party:
    return Party(
        role=values["role"],
        cik=ten_digits(values.get("cik", "")),
        name=values.get("name", "")[:256],
        form=values.get("form", "")[:64],
        file_number=values.get("file_number", "")[:64],
    )


def _accession(value: str) -> str:
    found = ACCESSION.search(value)
    return found[1] if found else ""
