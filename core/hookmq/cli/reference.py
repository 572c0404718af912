"""The manual's page of the command line, made from the commands' own parsers."""

from hookmq.cli import COMMANDS, command_parser, top_parser

INTRODUCTION = """\
# Command line

Generated from the commands' own help; a test keeps it up to date. Installed plugins may add commands of their own
(`register_cli` in [Hooks](hooks.md)); `hookmq --help` lists them.

The flags of `pub`, `sub` and `rr` mean what they mean for mosquitto_pub, mosquitto_sub and mosquitto_rr. Missing are
`--proxy`, `--psk`, `--psk-identity`, `--tls-alpn`, `--tls-engine`, `--tls-engine-kpass-sha1`, `--keyform`,
`--pretty` and `--tls-use-os-certs` (write `--tls`); of mosquitto_sub `--random-filter` and `--remove-retained`,
of mosquitto_rr `-R`.

On a terminal, `sub` and `rr` print control characters, characters that change the direction of text, and bytes that are
not UTF-8 as escapes such as `\\x1b`. No message can then drive the terminal. A payload keeps its tabs and line ends.
A file or a pipe gets the bytes as they are. JSON holds such characters as escapes wherever it goes.
"""


def reference() -> str:
    """The page, in Markdown."""
    pages = [("hookmq", top_parser())] + [(f"hookmq {n}", command_parser(n)) for n in COMMANDS]
    return INTRODUCTION + "".join(
        f"\n## {name}\n\n```text\n{parser.format_help()}```\n" for name, parser in pages
    )
