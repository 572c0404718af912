"""Print a script that completes the commands and options of hookmq in your shell.

The script asks hookmq itself for the candidates, so it also completes the commands of installed plugins. If there are
no candidates, the shell completes file names.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Final

from hookmq.cli import COMMANDS, command_parser

EXAMPLES = """\
examples:
  hookmq completion fish > ~/.config/fish/completions/hookmq.fish
  source <(hookmq completion bash)                  # in ~/.bashrc
  source <(hookmq completion zsh)                   # in ~/.zshrc, after compinit"""
SCRIPTS: Final = {
    "bash": """\
_hookmq() {
    local IFS=$'\\n'
    COMPREPLY=($(hookmq completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _hookmq hookmq
""",
    "zsh": """\
#compdef hookmq
_hookmq() {
    local -a found
    found=("${(@f)$(hookmq completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _hookmq hookmq
""",
    "fish": """\
function __hookmq_words
    set -l words (commandline -opc) (commandline -ct)
    hookmq completion --words $words[2..-1] 2>/dev/null
end
complete -c hookmq -a '(__hookmq_words)'
""",
}
"""The completion script for each shell."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("shell", nargs="?", choices=tuple(SCRIPTS), help="the shell")
    parser.add_argument(
        "--words", nargs=argparse.REMAINDER, help="print the candidates for the last of these words"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the script, or the candidates."""
    if arguments.words is not None:
        for one in candidates(arguments.words or [""]):
            print(one)
    elif arguments.shell is None:
        print("hookmq completion: expected bash, zsh or fish", file=sys.stderr)
        return 2
    else:
        print(SCRIPTS[arguments.shell], end="")
    return 0


def candidates(words: list[str]) -> list[str]:
    """Return the candidates for the last word on the command line. `words` are the words after ``hookmq``."""
    *before, begun = words
    if not before:
        from hookmq.cli import commands

        found = [*COMMANDS, "help", *commands.names()]
    else:
        parser = _parser(before[0])
        found = [] if parser is None else list(_following(parser, before[1:], begun))
    return sorted({one for one in found if one.startswith(begun)})


def _parser(name: str) -> argparse.ArgumentParser | None:
    """Return a command's parser, or None if there is no such command."""
    if name in COMMANDS:
        return command_parser(name)
    from hookmq.cli import commands

    return commands.parser_of(name)


def _following(parser: argparse.ArgumentParser, before: list[str], begun: str) -> Iterator[str]:
    """Yield what may follow the words `before`: an option's values, options or subcommands."""
    option: argparse.Action | None = None
    for word in before:
        option = None
        for action in parser._actions:
            if word in action.option_strings and action.nargs != 0:
                option = action
            elif isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
                break
    if option is not None:
        yield from map(str, option.choices or ())
        return
    for action in parser._actions:
        if action.option_strings:
            if begun.startswith("-"):
                yield from action.option_strings
        elif action.choices is not None:
            yield from map(str, action.choices)
