from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from schemas.errors import ConfigError
from schemas.settings import (
    DEFAULT_CLASSES,
    ClassSettings,
    Frozen,
    KafkaSettings,
    LimitSettings,
    LinkSettings,
    LogSettings,
    RedisSettings,
    ReserveSettings,
    RuleSettings,
    SchedulerSettings,
    WorkerSettings,
)

GROUPS = [
    KafkaSettings,
    RedisSettings,
    LinkSettings,
    ReserveSettings,
    LimitSettings,
    SchedulerSettings,
    WorkerSettings,
    LogSettings,
]


@pytest.mark.parametrize(
    ("group", "values", "field"),
    [
        (KafkaSettings, {"bootstrap": "localhost"}, ("bootstrap",)),
        (KafkaSettings, {"bootstrap": "a:9092,b"}, ("bootstrap",)),
        (KafkaSettings, {"bootstrap": "a:0"}, ("bootstrap",)),
        (KafkaSettings, {"bootstrap": "a:70000"}, ("bootstrap",)),
        (KafkaSettings, {"bootstrap": "a:\u0669\u0660"}, ("bootstrap",)),
        (KafkaSettings, {"bootstrap": "a:\u00b2"}, ("bootstrap",)),
        (KafkaSettings, {"topic_prefix": "a b"}, ("topic_prefix",)),
        (KafkaSettings, {"topic_prefix": ""}, ("topic_prefix",)),
        (KafkaSettings, {"partitions": 0}, ("partitions",)),
        (KafkaSettings, {"connect_seconds": 0}, ("connect_seconds",)),
        (KafkaSettings, {"connect_seconds": float("inf")}, ("connect_seconds",)),
        (KafkaSettings, {"connect_seconds": float("nan")}, ("connect_seconds",)),
        (KafkaSettings, {"security_protocol": "TLS"}, ("security_protocol",)),
        (KafkaSettings, {"boostrap": "a:1"}, ("boostrap",)),
        (RedisSettings, {"url": "http://x"}, ("url",)),
        (RedisSettings, {"buffer": 0}, ("buffer",)),
        (LinkSettings, {"address": "inproc://x"}, ("address",)),
        (LinkSettings, {"heartbeat_seconds": -1}, ("heartbeat_seconds",)),
        (ReserveSettings, {"kv_fraction": 1.0}, ("kv_fraction",)),
        (LimitSettings, {"record_bytes": 10}, ("record_bytes",)),
        (ClassSettings, {"name": "a", "slo_ms": 0}, ("slo_ms",)),
        (ClassSettings, {"name": "a", "slo_ms": 1, "extractor": "a poem"}, ("extractor",)),
        (RuleSettings, {"service_class": "a", "topic": "weather"}, ("topic",)),
        (RuleSettings, {"service_class": "a", "urgency_at_most": 0}, ("urgency_at_most",)),
        (SchedulerSettings, {"classes": ({"name": "a", "slo_ms": "soon"},)}, ("classes", 0, "slo_ms")),
        (SchedulerSettings, {"reserve": {"seqs": -1}}, ("reserve", "seqs")),
        (SchedulerSettings, {"max_attempts": 0}, ("max_attempts",)),
        (SchedulerSettings, {"metrics_port": 65536}, ("metrics_port",)),
        (WorkerSettings, {"engine": "gpt"}, ("engine",)),
        (WorkerSettings, {"gpu_memory_utilization": 1.5}, ("gpu_memory_utilization",)),
        (LogSettings, {"level": "loud"}, ("level",)),
    ],
)
def test_a_wrong_setting_is_named(group: type[Frozen], values: dict[str, Any], field: tuple[str | int, ...]) -> None:
    """The validation error points at the setting, down to the place in a list."""
    with pytest.raises(ValidationError) as caught:
        group(**values)
    assert [error["loc"] for error in caught.value.errors()] == [field]


@pytest.mark.parametrize(
    ("group", "values", "words"),
    [
        (LinkSettings, {"heartbeat_seconds": 2, "dead_after_seconds": 3}, "dead_after_seconds"),
        (ClassSettings, {"name": "a", "slo_ms": 10, "toxic_ms": 9}, "toxic_ms"),
        (SchedulerSettings, {"classes": ()}, "classes"),
        (SchedulerSettings, {"classes": (*DEFAULT_CLASSES, DEFAULT_CLASSES[0])}, "flash"),
        (SchedulerSettings, {"classes": [c.model_copy(update={"floor": 0.5}) for c in DEFAULT_CLASSES]}, "floors"),
        (SchedulerSettings, {"rules": ()}, "rules"),
        (SchedulerSettings, {"rules": ({"service_class": "express"},)}, "express"),
        (SchedulerSettings, {"rules": ({"service_class": "flash", "topic": "news"},)}, "last of rules"),
    ],
)
def test_settings_that_contradict_each_other_are_named(group: type[Frozen], values: dict[str, Any], words: str) -> None:
    """A combination that cannot work says which settings are meant."""
    with pytest.raises(ValidationError, match=words):
        group(**values)


@pytest.mark.parametrize("group", GROUPS)
def test_defaults_are_valid_and_frozen(group: type[Frozen]) -> None:
    """Every group can be made from nothing, and nobody can change it afterwards."""
    settings = group()
    with pytest.raises(ValidationError):
        setattr(settings, next(iter(group.model_fields)), None)


def test_plain_options_hold_no_credentials() -> None:
    """Without SASL no user name or password reaches the client."""
    options = KafkaSettings(bootstrap="a:1,b:2", connect_seconds=3).client_options()
    assert options == {"bootstrap_servers": "a:1,b:2", "security_protocol": "PLAINTEXT", "request_timeout_ms": 3000}


def test_sasl_options_hold_the_credentials_and_the_settings_hide_them() -> None:
    """The client gets the password; a dump or a log of the settings does not."""
    settings = KafkaSettings(
        security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u", sasl_password=SecretStr("hush")
    )
    options = settings.client_options()
    assert (options["sasl_mechanism"], options["sasl_plain_username"], options["sasl_plain_password"]) == (
        "PLAIN",
        "u",
        "hush",
    )
    assert isinstance(options["ssl_context"], ssl.SSLContext)
    assert options["ssl_context"].verify_mode is ssl.CERT_REQUIRED
    assert "hush" not in f"{settings!r} {settings.model_dump_json()}"


def test_unreadable_certificates_are_named(tmp_path: Path) -> None:
    """A missing or broken certificate file is a configuration error that names its setting."""
    with pytest.raises(ConfigError, match=r"kafka\.tls_ca_file"):
        KafkaSettings(security_protocol="SSL", tls_ca_file=tmp_path / "none.pem").client_options()
    (tmp_path / "broken.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"kafka\.tls_ca_file"):
        KafkaSettings(security_protocol="SSL", tls_ca_file=tmp_path / "broken.pem").client_options()
    with pytest.raises(ConfigError, match=r"kafka\.tls_cert_file"):
        KafkaSettings(security_protocol="SSL", tls_cert_file=tmp_path / "broken.pem").client_options()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_of_our_own_is_loaded(tmp_path: Path) -> None:
    """A readable authority, certificate and key make a context for mutual TLS."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=test", "-days", "1", "-nodes"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *subject, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    settings = KafkaSettings(security_protocol="SSL", tls_ca_file=cert, tls_cert_file=cert, tls_key_file=key)
    context = settings.client_options()["ssl_context"]
    assert [dict(pair[0] for pair in entry["subject"]) for entry in context.get_ca_certs()] == [{"commonName": "test"}]


def test_topics_follow_the_prefix() -> None:
    """The topic names come from the configured prefix."""
    assert KafkaSettings(topic_prefix="desk-7").topics.news == "desk-7.news"
