"""Fill in placeholders in settings, using data from the client and claims from its token."""

from collections.abc import Mapping
from typing import Any, Final

from hookmq.plugin import ConfigError
from hookmq_toolkit.claims import claim_text
from hookmq_toolkit.templates import Template

CLIENT_ID: Final = "clientid"
USERNAME: Final = "username"
_CLAIM: Final = "claims."


class ClaimTemplate:
    """Text with the placeholders ``${clientid}`` and ``${username}``, which are replaced by the client's data.

    With `claims`, the text may also contain ``${claim}`` or ``${claims.NAME}``. Any other placeholder raises
    ConfigError, which names the setting `key`.
    """

    __slots__ = ("_template", "names", "text")

    def __init__(self, text: str, key: str, claims: bool = False) -> None:
        self.text = text
        self._template = Template(text)
        self.names = self._template.names
        """The placeholder names."""
        if self._template.unclosed:
            raise ConfigError(f"{key}: '${{' is not closed in {text!r}")
        for name in self.names:
            if not name or (name not in (CLIENT_ID, USERNAME) and not claims):
                raise ConfigError(
                    f"{key}: unknown placeholder ${{{name}}}",
                    hint="known: ${clientid} and ${username}",
                )

    def fill(self, client_id: str, username: str | None, claims: Mapping[str, Any]) -> str | None:
        """Return the filled text, or None if a value is missing or is neither a string nor an integer."""

        def value(name: str) -> str | None:
            if name == CLIENT_ID:
                return client_id
            if name == USERNAME:
                return username
            found = claim_text(claims, name)
            if found is None and name.startswith(_CLAIM):
                found = claim_text(claims, name[len(_CLAIM) :])
            return found

        return self._template.fill(value)
