"""Test which URLs are refused in settings, and which would send secrets in clear text."""

import pytest
from hookmq.plugin import ConfigError
from hookmq_toolkit.service_url import check_service_url, clear_text_host


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://a/", "http:// or https://"),
        ("a.example", "http:// or https://"),
        ("https:///path", "http:// or https://"),
        ("http://[", "not a valid URL"),
        ("http://a:99999/", "not a valid URL"),
        ("https://${client}.example/", "not in the host"),
        ("https://user@a/", "not allowed in a URL; use auth"),
        ("https://ann:hunter2/x@a/", "not a valid URL"),
        ("https://:hunter2@a/", "not allowed in a URL; use auth"),
    ],
)
def test_a_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_service_url("keys.url", url, "auth")
    assert refused.value.message.startswith("keys.url: ")
    assert says in refused.value.message
    assert "hunter2" not in refused.value.message


def test_a_url_is_accepted() -> None:
    parts = check_service_url("url", "https://a.example:8443/${topic}?q=${id}")
    assert (parts.hostname, parts.port) == ("a.example", 8443)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://a.example/", ""),
        ("http://localhost:1/", ""),
        ("http://127.9.9.9/", ""),
        ("http://[::1]/", ""),
        ("http://a.example/", "a.example"),
        ("http://192.0.2.1/", "192.0.2.1"),
        ("http://localhost.example/", "localhost.example"),
        ("http:///", "?"),
    ],
)
def test_the_host_of_a_url_in_clear_text(url: str, host: str) -> None:
    assert clear_text_host(url) == host
