"""EDGAR's XML forms as sentences and labelled lines: ownership (3, 4, 5), 13F holdings, 13D, 13G and the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from typing import Any

from lxml import etree

from producers.errors import FeedError, FeedErrorKind
from schemas.instruments import ten_digits

LINES_MOST = 50_000
DEPTH_MOST = 100

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_")
_CODES = {
    "P": "open-market purchase",
    "S": "open-market sale",
    "A": "grant or award",
    "D": "disposition to the issuer",
    "F": "shares withheld for tax or exercise price",
    "M": "exercise or conversion of a derivative",
    "C": "conversion",
    "G": "gift",
    "X": "exercise of an in-the-money derivative",
    "J": "other acquisition or disposition",
    "I": "discretionary transaction",
    "U": "disposition in a tender offer",
    "W": "acquisition or disposition by will",
}
"""Transaction codes of forms 4 and 5 (their general instructions, section 8)."""
_ROLES = {"isDirector": "director", "isOfficer": "officer", "isTenPercentOwner": "10% owner", "isOther": "other"}
_TRUE = frozenset({"1", "true"})
_NOISE = frozenset({"ccc", "filerCredentials", "liveTestFlag", "schemaVersion", "testOrLive", "confirmingCopyFlag"})


@dataclass(frozen=True, kw_only=True, slots=True)
class XmlForm:
    """An XML form as text.

    Args:
        form: form type that it states; ``""`` when it states none.
        lines: its content, one statement a line.
        company: issuer or filer.
        ciks: issuer first, ten digits each.
        symbols: trading symbols that it states.
        period: ``YYYY-MM-DD``; ``""`` when it states none.
    """

    form: str
    lines: list[str]
    company: str = ""
    ciks: list[str] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    period: str = ""


def parse_xml_form(body: bytes) -> XmlForm:
    """Read an XML form; entities are never resolved and nothing is loaded from outside.

    Raises:
        FeedError: it is not well-formed.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
    try:
        # Some forms begin with an empty line before their declaration, where XML allows none.
        root = etree.fromstring(body.lstrip(b"\xef\xbb\xbf \t\r\n\x00"), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise FeedError(FeedErrorKind.MALFORMED, "", f"not well-formed XML: {str(error)[:200]}") from None
    _strip_namespaces(root)
    if root.tag == "ownershipDocument":
        return _ownership(root)
    if root.tag == "informationTable":
        return XmlForm(form="13F-HR", lines=list(_holdings(root)))
    return _labelled(root)


def _strip_namespaces(root: Any) -> None:
    for element in root.iter():
        if isinstance(element.tag, str) and "}" in element.tag:
            element.tag = element.tag.rpartition("}")[2]


def _ownership(root: Any) -> XmlForm:
    form = _value(root, "documentType")
    issuer, symbol = _value(root, "issuer/issuerName"), _value(root, "issuer/issuerTradingSymbol")
    period = _value(root, "periodOfReport")[:10]
    lines = [f"Form {form}: beneficial ownership of securities of {issuer}{f' ({symbol})' if symbol else ''}."]
    owners: list[str] = []
    for owner in root.findall("reportingOwner"):
        owners.append(_value(owner, "reportingOwnerId/rptOwnerCik"))
        lines.append(f"Reporting owner: {_value(owner, 'reportingOwnerId/rptOwnerName')}{_relationship(owner)}.")
    if period:
        lines.append(f"Period of report: {period}.")
    if original := _value(root, "dateOfOriginalSubmission"):
        lines.append(f"Amends the form submitted on {original}.")
    lines.extend(map(_transaction, root.iter("nonDerivativeTransaction", "derivativeTransaction")))
    lines.extend(map(_holding, root.iter("nonDerivativeHolding", "derivativeHolding")))
    lines.extend(f"Footnote {note.get('id', '')}: {_all_text(note)}" for note in root.iter("footnote"))
    if remarks := _value(root, "remarks"):
        lines.append(f"Remarks: {remarks}")
    ciks = [ten_digits(cik) for cik in (_value(root, "issuer/issuerCik"), *owners)]
    symbols = [symbol.upper()] if symbol and symbol.upper() not in {"NONE", "N/A", "NA"} else []
    return XmlForm(form=form, lines=lines, company=issuer, ciks=[c for c in ciks if c], symbols=symbols, period=period)


def _relationship(owner: Any) -> str:
    relation = owner.find("reportingOwnerRelationship")
    if relation is None:
        return ""
    roles = [name for tag, name in _ROLES.items() if _value(relation, tag).lower() in _TRUE]
    titles = [title for tag in ("officerTitle", "otherText") if (title := _value(relation, tag))]
    words = ", ".join([*roles, *titles])
    return f" ({words})" if words else ""


def _transaction(row: Any) -> str:
    code = _value(row, "transactionCoding/transactionCode")
    acquired = _value(row, "transactionAmounts/transactionAcquiredDisposedCode") != "D"
    price = _value(row, "transactionAmounts/transactionPricePerShare")
    after = _value(row, "postTransactionAmounts/sharesOwnedFollowingTransaction")
    shares = _value(row, "transactionAmounts/transactionShares") or _value(
        row, "transactionAmounts/transactionTotalValue"
    )
    words = [
        f"{_value(row, 'transactionDate')}: {'acquired' if acquired else 'disposed of'} {shares}",
        _value(row, "securityTitle"),
        f"at ${price}" if price else "",
        f"({_CODES.get(code, 'transaction')}, code {code})" if code else "",
        _underlying(row),
        f"owned after: {after}" if after else "",
        _nature(row),
    ]
    return _sentence(words)


def _holding(row: Any) -> str:
    shares = _value(row, "postTransactionAmounts/sharesOwnedFollowingTransaction")
    return _sentence([f"Holds {shares}", _value(row, "securityTitle"), _underlying(row), _nature(row)])


def _underlying(row: Any) -> str:
    title = _value(row, "underlyingSecurity/underlyingSecurityTitle")
    if not title:
        return ""
    shares, price = _value(row, "underlyingSecurity/underlyingSecurityShares"), _value(row, "conversionOrExercisePrice")
    return f"on {shares} {title}" + (f", exercise price ${price}" if price else "")


def _nature(row: Any) -> str:
    kind = _value(row, "ownershipNature/directOrIndirectOwnership")
    if kind != "I":
        return "direct" if kind == "D" else ""
    nature = _value(row, "ownershipNature/natureOfOwnership")
    return f"indirect ({nature})" if nature else "indirect"


def _sentence(words: list[str]) -> str:
    return " ".join(word for word in words if word).strip() + "."


def _holdings(root: Any) -> Iterator[str]:
    """Yield the positions of a 13F information table."""
    for row in root.iter("infoTable"):
        amount = _value(row, "shrsOrPrnAmt/sshPrnamt")
        put_call = _value(row, "putCall")
        yield (
            f"{_value(row, 'nameOfIssuer')} {_value(row, 'titleOfClass')} (CUSIP {_value(row, 'cusip')})"
            f"{f' {put_call}' if put_call else ''}: value ${_value(row, 'value')}, "
            f"{amount} {_value(row, 'shrsOrPrnAmt/sshPrnamtType')}"
        )


def _labelled(root: Any) -> XmlForm:
    ciks = [ten_digits(_all_text(e)) for e in root.iter("issuerCik", "issuerCIK", "subjectCompanyCik")]
    ciks += [ten_digits(_all_text(e)) for e in root.iter("cik", "reportingPersonCIK", "rptOwnerCik")]
    company = next((_all_text(e) for e in root.iter("issuerName", "entityName", "name") if _all_text(e)), "")
    form = next((_all_text(e) for e in root.iter("submissionType", "documentType") if _all_text(e)), "")
    return XmlForm(
        form=form,
        lines=list(_groups(root))[:LINES_MOST],
        company=company,
        ciks=list(dict.fromkeys(c for c in ciks if c)),
    )


def _groups(root: Any) -> Iterator[str]:
    """Yield one line per element that has values: its name in words, then name and text of each value."""
    stack: list[tuple[Any, int]] = [(root, 0)]
    while stack:
        element, depth = stack.pop()
        inner = [child for child in element if isinstance(child.tag, str) and child.tag not in _NOISE]
        values = [(child.tag, _all_text(child)) for child in inner if len(child) == 0]
        stated = "; ".join(f"{_words(tag)}: {unescape(text)}" for tag, text in values if text)
        if stated:
            yield f"{_words(element.tag)}. {stated}"
        if depth < DEPTH_MOST:
            stack.extend((child, depth + 1) for child in reversed(inner) if len(child))


def _words(tag: str) -> str:
    return _WORD.sub(" ", tag).lower()


def _value(element: Any, path: str) -> str:
    """Return the text at a path, where forms 3, 4 and 5 put most of it one level deeper, into ``value``."""
    found = element.find(path)
    if found is None:
        return ""
    inner = found.find("value")
    return _all_text(found if inner is None else inner)


def _all_text(element: Any) -> str:
    return " ".join("".join(element.itertext()).split())
