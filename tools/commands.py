"""Print docs/reference/cli.md, the page of all commands and their options, generated from each command's help.

python tools/commands.py > docs/reference/cli.md
"""

from hookmq.cli import COMMANDS, command_parser, top_parser

INTRODUCTION = """\
# Command line

This page is generated from the help of the commands, and a test keeps it up to date. Installed plugins may add commands
([how](plugin-api.md#a-command)); `hookmq --help` lists them.

The options of `pub`, `sub` and `rr` have the same meaning as in mosquitto_pub, mosquitto_sub and mosquitto_rr. These
options are not supported: `--proxy`, `--psk`, `--psk-identity`, `--tls-alpn`, `--tls-engine`,
`--tls-engine-kpass-sha1`, `--keyform`, `--pretty` and `--tls-use-os-certs` (use `--tls`); `--random-filter` and
`--remove-retained` of mosquitto_sub; `-R` of mosquitto_rr.

On a terminal, `sub` and `rr` escape control characters, characters that change the direction of text, and bytes that
are not UTF-8: they print `\\x1b`, for example. A message therefore cannot control the terminal. Tabs and line ends in a
payload are kept. In a file or a pipe, the bytes are unchanged. JSON output always escapes such characters.
"""


def reference() -> str:
    """Return the page as Markdown."""
    pages = [("hookmq", top_parser())] + [(f"hookmq {n}", command_parser(n)) for n in COMMANDS]
    return INTRODUCTION + "".join(
        f"\n## {name}\n\n```text\n{parser.format_help()}```\n" for name, parser in pages
    )


if __name__ == "__main__":
    print(reference(), end="")
