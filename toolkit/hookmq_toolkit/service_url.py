"""Check the URLs of HTTP services in settings, and find those that cross a network unencrypted."""

import ipaddress
from urllib.parse import SplitResult, urlsplit

from hookmq.plugin import ConfigError


def check_service_url(key: str, url: str, credentials: str = "") -> SplitResult:
    """Return the parts of `url`. Raise ConfigError, with a message that starts with `key`, if it is not an HTTP
    service's URL.

    ``${...}`` is refused in the scheme, host and port, so that no client can choose them. A user name and password are
    refused because URLs are logged; `credentials` names the setting to use instead.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # its text may quote a password
        raise ConfigError(f"{key}: not a valid URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{key}: expected a URL that begins with http:// or https://")
    if "$" in parts.netloc:
        raise ConfigError(f"{key}: ${{...}} is allowed in path and query only, not in the host")
    if parts.username is not None or parts.password is not None:
        instead = f"; use {credentials}" if credentials else ""
        raise ConfigError(f"{key}: user name and password are not allowed in a URL{instead}")
    return parts


def clear_text_host(url: str) -> str:
    """Return the host if requests to `url` cross a network unencrypted, or '' for https and for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or host == "localhost":
        return ""
    try:
        return "" if ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return host or "?"
