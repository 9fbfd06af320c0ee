"""Item codes of form 8-K, from the titles that a header lists and from the headings of the body."""

from __future__ import annotations

import re
from collections.abc import Iterable

DECIMAL_SINCE = "2004-08-23"
"""First day of the decimal items (SEC release 33-8400); before it items had one or two digits."""

_MODERN = {
    "1.01": ("entry into a material definitive agreement", "entry into material agreement"),
    "1.02": ("termination of a material definitive agreement", "termination of material agreement"),
    "1.03": ("bankruptcy or receivership",),
    "1.04": ("mine safety",),
    "1.05": ("material cybersecurity incident",),
    "2.01": ("completion of acquisition or disposition of assets",),
    "2.02": ("results of operations and financial condition",),
    "2.03": ("creation of a direct financial obligation",),
    "2.04": ("triggering events",),
    "2.05": ("costs associated with exit", "cost associated with exit"),
    "2.06": ("material impairment",),
    "3.01": ("notice of delisting",),
    "3.02": ("unregistered sale",),
    "3.03": ("material modification",),
    "4.01": ("changes in registrant s certifying accountant", "change in registrant s certifying accountant"),
    "4.02": ("non reliance on previously issued", "nonreliance on previously issued"),
    "5.01": ("changes in control", "change in control"),
    "5.02": ("departure of directors", "departure of director", "departure of certain officers"),
    "5.03": ("amendments to articles", "amendment to articles"),
    "5.04": ("temporary suspension of trading",),
    "5.05": ("amendments to the registrant s code of ethics", "amendment to registrant s code of ethics"),
    "5.06": ("change in shell company",),
    "5.07": ("submission of matters to a vote",),
    "5.08": ("shareholder director nominations", "shareholder nominations"),
    "6.01": ("abs informational",),
    "6.02": ("change of servicer",),
    "6.03": ("change in credit enhancement",),
    "6.04": ("failure to make a required distribution",),
    "6.05": ("securities act updating",),
    "6.06": ("static pool",),
    "7.01": ("regulation fd",),
    "8.01": ("other events",),
    "9.01": ("financial statements and exhibits", "financial statements pro forma"),
}
_OLD = {
    "1": ("changes in control", "change in control"),
    "2": ("acquisition or disposition of assets",),
    "3": ("bankruptcy or receivership",),
    "4": ("changes in registrant s certifying accountant", "change in registrant s certifying accountant"),
    "5": ("other events",),
    "6": ("resignations of registrant s directors", "resignation of registrant s directors"),
    "7": ("financial statements",),
    "8": ("change in fiscal year",),
    "9": ("regulation fd",),
    "10": ("amendments to the registrant s code of ethics",),
    "11": ("temporary suspension of trading",),
    "12": ("results of operations and financial condition",),
}
CODES = frozenset(_MODERN)

_CODE = re.compile(r"\d{1,2}(?:\.\d{2})?")
_OTHER_CODE = re.compile(r"[0-9A-Za-z.()-]{1,6}")
_WORDS = re.compile(r"[^a-z0-9]+")
_HEADING = re.compile(
    r"\W{0,8}items?\s*(?:no\.?\s*)?[-:\u2013\u2014.#|]?\s*(\d{1,2})(?:\s*[.,]\s*(\d{2}))?(?![\d%])\s*[-:\u2013\u2014.)|]*\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_REFERENCE = re.compile(
    r"(?:\W*(?:and|or|through)\s+(?:item|\d)|(?:of|in|to|above|below|shall|is|are|hereof|hereby|under|pursuant)\b)",
    re.IGNORECASE,
)
"""What follows an item's number inside a sentence, and never in a heading."""
HEADING_CHARS = 400


def is_8k(form: str) -> bool:
    """Whether the form is an 8-K of any kind (``8-K/A``, ``8-K12G3``, ``8-KT``)."""
    return form.upper().startswith("8-K")


def code_of_title(value: str, form: str, filed: str) -> str:
    """Return the code for one item of a header, which lists titles in one dialect and codes in the other.

    Args:
        value: ``Other Events``, ``8.01``, ``06b``.
        form: of the submission; other forms than 8-K keep the value as it is, if it is a code.
        filed: ``YYYY-MM-DD``; the same title had another number before `DECIMAL_SINCE`. Empty means after.

    Returns:
        The code, or ``""`` for a title that no item has.
    """
    value = value.strip()
    if _CODE.fullmatch(value):
        return value
    if not is_8k(form):
        return value if _OTHER_CODE.fullmatch(value) else ""
    words = " ".join(_WORDS.sub(" ", value.lower()).split())
    titles = _OLD if filed and filed < DECIMAL_SINCE else _MODERN
    for code, beginnings in titles.items():
        if words.startswith(beginnings):
            return code
    return ""


def heading_of(line: str, *, decimal: bool | None) -> tuple[str, str] | None:
    """Return code and title when a line is the heading of an 8-K item, and None when it is not.

    Args:
        line: one line of text.
        decimal: whether the filing is of the time of decimal items; None when that is unknown.
    """
    if len(line) > HEADING_CHARS:
        return None
    found = _HEADING.match(line)
    if not found:
        return None
    whole, hundredths, title = found.groups()
    if _REFERENCE.match(title):
        return None
    if hundredths:
        code = f"{int(whole)}.{hundredths}"
        return (code, title.strip()) if code in CODES and decimal is not False else None
    if decimal or not 1 <= int(whole) <= 12:
        return None
    return str(int(whole)), title.strip()


def merged(header: Iterable[str], body: Iterable[str]) -> list[str]:
    """Return the codes of header and body once each, in the order of their numbers: neither list is complete."""
    return sorted(dict.fromkeys((*header, *body)), key=_order)


def _order(code: str) -> tuple[int, str]:
    whole = code.split(".")[0]
    return (int(whole) if whole.isdigit() else 99, code)
