"""The root of every error Tapewire raises on purpose, and the families that all packages share."""

from __future__ import annotations

from enum import StrEnum


class TapewireError(Exception):
    """Root of all errors that Tapewire raises on purpose; anything else that escapes is a defect."""


class ConfigError(TapewireError):
    """A setting is missing or wrong.

    Args:
        setting: dotted name as it stands in ``tapewire.toml``, for example ``kafka.bootstrap``.
        reason: what is wrong with it and what would be right.
    """

    def __init__(self, setting: str, reason: str) -> None:
        self.setting = setting
        self.reason = reason
        super().__init__(f"{setting}: {reason}")


class UnavailableError(TapewireError):
    """Something outside the process (Kafka, Redis, a model, a port) cannot be used.

    Args:
        what: what could not be used, with its address.
        setting: the setting that names it.
        reason: why, in the words of the client that tried.
    """

    def __init__(self, what: str, setting: str, reason: str) -> None:
        self.what = what
        self.setting = setting
        self.reason = reason
        super().__init__(f"{what} is unavailable ({setting}): {reason}")


class DecisionError(TapewireError):
    """A person must decide how to go on: starting again would only end the same way."""


class ErrorKind(StrEnum):
    """Why a record became a dead letter. The values are part of the wire contract."""

    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    WRONG_TYPE = "wrong_type"
    MISSING_FIELD = "missing_field"
    INVALID_VALUE = "invalid_value"
    EMPTY_TEXT = "empty_text"
    TEXT_TOO_LONG = "text_too_long"
    RECORD_TOO_LARGE = "record_too_large"
    UNKNOWN_SCHEMA_VERSION = "unknown_schema_version"
    ENGINE_ERROR = "engine_error"
    BAD_ANSWER = "bad_answer"
    CUT_ANSWER = "cut_answer"
    UNKNOWN_LABEL = "unknown_label"
    BAD_PROBABILITY = "bad_probability"
    GRAMMAR = "grammar"
    QUARANTINED = "quarantined"
    OFFSETS_LOST = "offsets_lost"


class DecodeError(TapewireError):
    """A record on a topic, or a line in a file, is not what its schema says.

    Args:
        kind: the typed reason.
        field: dotted path of the field at fault (``headline``, ``instruments[2]``), or ``""`` when the whole
            record is at fault.
        reason: one sentence for a person.
    """

    def __init__(self, kind: ErrorKind, field: str, reason: str) -> None:
        self.kind = kind
        self.field = field
        self.reason = reason
        where = f"field {field!r}" if field else "record"
        super().__init__(f"{kind.value}: {where}: {reason}")
