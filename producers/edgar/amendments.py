"""Finds the filing that an amendment amends, in the company's own list of submissions."""

from __future__ import annotations

import structlog

from producers.edgar.header import Header
from producers.edgar.listing import CompanySubmissions, parse_submissions
from producers.errors import FeedError, FetchError
from producers.http import HttpClient
from schemas.settings import EdgarSettings

log = structlog.get_logger()

ATTEMPTS = 2
"""An amendment without its link is worth more than one that is late."""
LIST_BYTES = 64 * 1024 * 1024


def original_in(header: Header, submissions: CompanySubmissions) -> str:
    """Return the accession that an amendment amends; ``""`` when the list names none.

    It is the newest filing of the unamended form that was there before: of the same period of report where the
    amendment states one, else under the same SEC file number, else any.
    """
    base = header.form.removesuffix("/A")
    if base == header.form:
        return ""
    columns = submissions.filings.recent
    numbers = {party.file_number for party in header.parties if party.file_number}
    candidates = [
        place
        for place, form in enumerate(columns.form)
        if form == base
        and columns.accession_number[place] != header.accession
        and (not header.filed or _at(columns.filing_date, place) <= header.filed)
    ]
    same_period = [p for p in candidates if header.period and _at(columns.report_date, p) == header.period]
    same_number = [p for p in candidates if _at(columns.file_number, p) in numbers]
    if header.period and any(columns.report_date):
        # Another period's report is not what is amended; a list without periods cannot tell.
        candidates = []
    best = same_period or same_number or candidates
    newest = max(best, key=lambda place: _at(columns.filing_date, place), default=None)
    return "" if newest is None else columns.accession_number[newest]


class AmendmentLinks:
    """Looks amendments up.

    Args:
        http: fetches the lists.
        settings: where they are.
    """

    def __init__(self, http: HttpClient, settings: EdgarSettings) -> None:
        self._http = http
        self._settings = settings

    async def original_of(self, header: Header) -> str:
        """Return the accession that this filing amends; ``""`` when it is no amendment or its original is not found."""
        if not self._settings.link_amendments or not header.form.endswith("/A"):
            return ""
        for party in header.subjects[:1]:
            url = f"{self._settings.data_url}/submissions/CIK{party.cik}.json"
            try:
                response = await self._http.get(url, attempts=ATTEMPTS, max_bytes=LIST_BYTES)
                return original_in(header, parse_submissions(response.body))
            except (FetchError, FeedError) as error:
                log.warning("amendment_not_linked", accession=header.accession, form=header.form, error=str(error))
        return ""


def _at(column: list[str], place: int) -> str:
    return column[place] if place < len(column) else ""
