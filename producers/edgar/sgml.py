"""Takes a full submission apart: wrapper, header, documents; from the PEM and IMS files of 1993 to today's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

DOCUMENTS_MOST = 2_000
"""The largest real submissions have a few hundred documents; what is past this is hostile or broken."""

_PEM = b"-----BEGIN PRIVACY-ENHANCED MESSAGE-----"
_PEM_END = re.compile(rb"^-----END PRIVACY-ENHANCED MESSAGE-----", re.MULTILINE)
_DASH_ESCAPE = re.compile(rb"^- (?=-)", re.MULTILINE)
_START = re.compile(rb"<(?:SEC-DOCUMENT|IMS-DOCUMENT|SUBMISSION|SEC-HEADER|IMS-HEADER|DOCUMENT)>", re.IGNORECASE)
_DOCUMENT = re.compile(rb"<DOCUMENT>[ \t]*(?=\n|<|$)", re.IGNORECASE)
_TEXT = re.compile(rb"<TEXT>", re.IGNORECASE)
_TEXT_END = re.compile(rb"</TEXT>", re.IGNORECASE)
_DOCUMENT_END = re.compile(rb"</DOCUMENT>", re.IGNORECASE)
_FIELD = re.compile(rb"<(TYPE|SEQUENCE|FILENAME|DESCRIPTION)>([^\n<]*)", re.IGNORECASE)
_WRAPPER = re.compile(rb"\s*<(XBRL|XML|PDF)>", re.IGNORECASE)
_UUENCODED = re.compile(rb"\s*begin [0-7]{3,4} \S", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One document of a submission.

    Args:
        type: as EDGAR writes it: ``8-K``, ``EX-99.1``, ``GRAPHIC``.
        sequence: its number in the submission; its place in the file where that is missing.
        filename: as the filer named it; may be empty.
        description: as the filer described it; may be empty.
        body: what stands between ``<TEXT>`` and ``</TEXT>``, without an ``<XBRL>`` or ``<XML>`` wrapper.
        binary: a uuencoded file or a PDF, which holds no text for us.
    """

    type: str
    sequence: int
    filename: str
    description: str
    body: bytes
    binary: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A submission in pieces.

    Args:
        header: everything before the first document, wrapper removed; empty when there is no header.
        body: the rest, for `documents`.
    """

    header: bytes
    body: bytes

    def documents(self) -> Iterator[Document]:
        """Yield the documents in file order; a tag that is never closed ends at the next document."""
        tags = [match.span() for match in _DOCUMENT.finditer(self.body) if _opens_line(self.body, match.start())]
        for index, (_, start) in enumerate(tags[:DOCUMENTS_MOST]):
            end = tags[index + 1][0] if index + 1 < len(tags) else len(self.body)
            yield _document(self.body[start:end], index + 1)


def split(data: bytes) -> Submission:
    """Take a file apart; one without any tag of a submission is all header and has no documents."""
    if b"\r" in data:
        # Dissemination files separate lines by carriage returns alone.
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if data.lstrip()[: len(_PEM)] == _PEM:
        if end := _PEM_END.search(data):
            data = data[: end.start()]
        data = _DASH_ESCAPE.sub(b"", data)
    start = _START.search(data)
    data = data[start.start() :] if start else data
    for first in _DOCUMENT.finditer(data):
        if _opens_line(data, first.start()):
            return Submission(header=data[: first.start()], body=data[first.start() :])
    return Submission(header=data, body=b"")


def looks_like(head: bytes) -> bool:
    """Whether the start of a file is that of a submission, or of one document with its tags."""
    found = _START.search(head)
    if found is None:
        return False
    before = head[: found.start()].strip()
    if before and not before.startswith(_PEM):
        return False
    return found[0].upper() != b"<DOCUMENT>" or b"<TYPE>" in head[found.end() : found.end() + 200].upper()


def _opens_line(data: bytes, at: int) -> bool:
    """Whether a tag stands where a tag of the container can: on a line of its own, or straight behind another tag."""
    before = data[max(0, at - 200) : at].rstrip(b" \t")
    return not before or before.endswith((b"\n", b">"))


def _document(chunk: bytes, place: int) -> Document:
    text = _TEXT.search(chunk)
    meta, body = (chunk[: text.start()], chunk[text.end() :]) if text else (chunk, b"")
    fields = {name.upper(): value.decode("latin-1").strip() for name, value in _FIELD.findall(meta)}
    body = _until_last(body, _TEXT_END if _TEXT_END.search(body) else _DOCUMENT_END)
    binary = bool(_UUENCODED.match(body))
    if wrapper := _WRAPPER.match(body):
        binary = binary or wrapper[1].upper() == b"PDF" or bool(_UUENCODED.match(body, wrapper.end()))
        closing = re.compile(rb"</" + wrapper[1] + rb">\s*\Z", re.IGNORECASE)
        body = closing.sub(b"", body[wrapper.end() :].rstrip())
    sequence = fields.get(b"SEQUENCE", "")
    return Document(
        type=fields.get(b"TYPE", "")[:64],
        sequence=int(sequence) if sequence.isascii() and sequence.isdigit() and len(sequence) < 7 else place,
        filename=fields.get(b"FILENAME", "")[:256],
        description=fields.get(b"DESCRIPTION", "")[:256],
        body=b"" if binary else body,
        binary=binary,
    )


def _until_last(body: bytes, tag: re.Pattern[bytes]) -> bytes:
    ends = [match.start() for match in tag.finditer(body)]
    return body[: ends[-1]] if ends else body
