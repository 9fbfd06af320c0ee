"""Configuration of the news feed handler, the group ``news``: its sources and what it remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from schemas.settings import Frozen, Name, Seconds


def _zone(value: str) -> str:
    if value:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"{value!r} is not a time zone of the IANA database, as America/New_York is") from None
    return value


Zone = Annotated[str, AfterValidator(_zone)]
Urgency = Annotated[int, Field(ge=0, le=9)]


class NewsSourceSettings(Frozen):
    """What every source of news has.

    Args:
        name: the events' source; no item of it can pass for another source.
        zone: IANA name of the zone of times that come without one; without it such times stay unknown.
        language: of items that name none.
        urgency: IPTC urgency of items that have none, 1 (flash) to 9; 0 for none.
    """

    name: Name
    zone: Zone = ""
    language: Annotated[str, Field(max_length=35)] = ""
    urgency: Urgency = 0


class NewsFeedSettings(NewsSourceSettings):
    """An RSS or Atom feed.

    Args:
        url: of the feed.
        poll_seconds: between two requests; they are conditional.
        bank: a central bank whose feed it is: its items have the highest urgency, and its policy statements are
            fetched and compared with the one before.
    """

    url: Annotated[str, Field(pattern=r"^https?://[^\s]+$")]
    poll_seconds: Annotated[float, Field(ge=1)] = 15.0
    bank: Literal["", "fed", "ecb"] = ""


class NewsDirectorySettings(NewsSourceSettings):
    """A directory into which a wire delivers files; it is watched.

    Args:
        name: the events' source; empty means the one that each file names.
        path: the directory; its subdirectories are not looked into.
        pattern: which files in it, as in a shell.
    """

    name: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")] = ""
    path: Path
    pattern: Annotated[str, Field(min_length=1)] = "*"


class NewsSocketSettings(NewsSourceSettings):
    """A vendor's WebSocket that pushes messages.

    Args:
        url: ``ws://`` or ``wss://``; it may hold a token, so it is shown nowhere.
        headers: sent with the connection, for example an authorization.
        subscribe: text to send once connected.
        ping_text: text to send every ``ping_seconds``, for vendors that want one of their own; WebSocket pings are
            always sent.
        silence_seconds: without a message or a pong for so long, the connection is made anew.
    """

    url: SecretStr
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    subscribe: SecretStr = SecretStr("")
    ping_text: str = ""
    ping_seconds: Seconds = 30.0
    silence_seconds: Seconds = 60.0

    @field_validator("url")
    @classmethod
    def _websocket(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith(("ws://", "wss://")):
            raise ValueError("it must begin with ws:// or wss://")
        return value


class NewsWebhookSettings(Frozen):
    """The HTTP server for vendors that push with requests: ``POST /news/NAME``.

    Args:
        port: 0 means that there is none.
        host: address that it binds to.
        token: the requests' ``Authorization: Bearer`` token; required beyond loopback.
        sources: who may post; ``NAME`` is the name of one.
        max_mb: largest request body, in mebibytes.
    """

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    host: str = "127.0.0.1"
    token: SecretStr = SecretStr("")
    sources: tuple[NewsSourceSettings, ...] = ()
    max_mb: Annotated[float, Field(gt=0, le=8)] = 4.0

    @model_validator(mode="after")
    def _guarded(self) -> NewsWebhookSettings:
        if self.port and not self.sources:
            raise ValueError("sources must name who may post")
        if self.port and self.host not in ("127.0.0.1", "::1", "localhost") and not self.token.get_secret_value():
            raise ValueError("beyond loopback a token is required: anybody could publish news otherwise")
        return self


class NewsSettings(Frozen):
    """The news feed handler, ``tapewire feed news``.

    Args:
        user_agent: who is asking, with a contact; required for feeds.
        central_banks: whose press feeds to follow, at their known addresses.
        feeds, directories, sockets, webhook: the other sources.
        requests_per_second: to one host.
        seen_days: how long a story is known after its last version.
        backfill_hours: when a feed is read for the first time, its items older than this are taken as known.
        clock_ahead_seconds: how far a source's clock may run ahead before its times are bounded.
        duplicate_similarity: share of words and word pairs from which headlines of two sources are near-duplicates.
        duplicate_hours: how long a headline is compared with later ones.
        tail_records: newest records of the news topic that are read at the start, to know what was published.
    """

    user_agent: str = ""
    central_banks: tuple[Literal["fed", "ecb"], ...] = ()
    feeds: tuple[NewsFeedSettings, ...] = ()
    directories: tuple[NewsDirectorySettings, ...] = ()
    sockets: tuple[NewsSocketSettings, ...] = ()
    webhook: NewsWebhookSettings = NewsWebhookSettings()
    requests_per_second: Annotated[float, Field(gt=0, le=100)] = 8.0
    seen_days: Annotated[float, Field(gt=0)] = 7.0
    backfill_hours: Annotated[float, Field(ge=0)] = 1.0
    clock_ahead_seconds: Annotated[float, Field(ge=0)] = 2.0
    duplicate_similarity: Annotated[float, Field(gt=0, le=1)] = 0.75
    duplicate_hours: Annotated[float, Field(gt=0)] = 24.0
    tail_records: Annotated[int, Field(ge=0)] = 20_000

    @model_validator(mode="after")
    def _named_once(self) -> NewsSettings:
        names = [*self.central_banks, *(source.name for source in (*self.feeds, *self.sockets))]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sources have the name {', '.join(twice)}")
        return self
