"""Every code block in the manual is run or validated, and every link leads somewhere.

The info string of a block determines the check:

| info string | check |
|---|---|
| `python` | executed as a module; plugins in it are run through an in-memory broker |
| `python file=NAME`, `toml file=NAME`, `yaml file=NAME` | written to the folder where the console commands run |
| `console` | run, and its output compared; see tests/support/console.py |
| `yaml config` | a whole configuration: validated as `hookmq check` does |
| `yaml part` | keys of a configuration: likewise, with the listeners they lack |
| `sh` | its syntax, the options of `hookmq` and the targets of `make` are checked |
| `toml`, `json`, `ini`, `js`, `go` | parsed, or a test of an example compares it |
| `text` | shown |

The pages below docs/reference have their own tests; here, their blocks are only compiled or parsed.
"""

import ast
import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import trustme
import yaml
from console import console, steps
from hookmq.cli import COMMANDS, command_parser
from hookmq.cli.check import validate
from hookmq.config.model import loads
from hookmq.hooks.specs import SPECS
from hookmq.plugin import Plugin
from hookmq_testing import Harness, make_plugin
from hookmq_testing.contracts.plugin import traffic
from pages import Block, anchors, blocks, links, pages, prose
from workspace import ROOT

PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()]
BLOCKS = [block for page in pages() for block in blocks(page)]
REFERENCE = ROOT / "docs" / "reference"
SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
"""The value of every secret in the manual. It is long enough for webhooks."""

KEY = "whsk_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
"""The value of every private key of webhooks: files that end with .key and that the manual's pages do not make."""


def of(*kinds: str) -> list[object]:
    """Return the blocks of certain kinds, except those on reference pages."""
    return [
        pytest.param(block, id=str(block))
        for block in BLOCKS
        if block.kind in kinds and REFERENCE not in block.page.parents and not block.file
    ]


def run_python(block: Block) -> None:
    module = ModuleType("shown")
    module.__file__ = str(block.page)
    exec(compile(block.text, str(block), "exec"), module.__dict__)
    shown = [kind for kind in vars(module).values() if isinstance(kind, type)]
    plugins = [kind for kind in shown if issubclass(kind, Plugin) and kind.__module__ == "shown"]
    if not plugins:
        return
    with Harness([make_plugin(kind) for kind in plugins]) as harness:
        traffic(harness)
        failed = [
            row for row in harness.hooks.metrics() if row[1].get("outcome") == "error" and row[2]
        ]
        assert not failed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create the files that the manual's configurations name."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "clients.pem")
    server = authority.issue_cert("localhost")
    server.private_key_pem.write_to_path(tmp_path / "server.key")
    server.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    return tmp_path


def check_config(text: str, folder: Path) -> None:
    """Validate a configuration that uses files in /etc/hookmq and /run/secrets, and environment variables."""
    for place in ("/etc/hookmq", "/run/secrets", "/var/lib/hookmq"):
        text = text.replace(place, str(folder))
    for name in re.findall(r"\$file: *([^\s},]+)", text):
        path = folder / name
        path.exists() or path.write_text(f"{KEY if path.suffix == '.key' else SECRET}\n")
    environ = dict.fromkeys(re.findall(r"\$env: *(\w+)", text), SECRET)
    config = loads(text, "shown", environ=environ, folder=folder)
    validate(config, config.loop)


@pytest.mark.parametrize("block", of("python"))
def test_python_runs(block: Block) -> None:
    run_python(block)


@pytest.mark.parametrize("block", of("python"))
def test_no_example_ignores_the_reason_code_of_subscribe(block: Block) -> None:
    ignored = [
        node.lineno
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Await)
        and isinstance(node.value.value, ast.Call)
        and isinstance(node.value.value.func, ast.Attribute)
        and node.value.value.func.attr == "subscribe"
    ]
    assert ignored == []


@pytest.mark.parametrize("block", of("yaml config"))
def test_a_configuration_is_right(block: Block, folder: Path) -> None:
    check_config(block.text, folder)


@pytest.mark.parametrize("block", of("yaml part"))
def test_a_part_of_a_configuration_is_right(block: Block, folder: Path) -> None:
    given = yaml.safe_load(block.text)
    text = block.text
    if "listeners" not in given:
        text += 'listeners: [{name: tcp, bind: "127.0.0.1:1883"}]\n'
    if "version" not in given:
        text += "version: 1\n"
    check_config(text, folder)


LONG = {
    ROOT / name
    for name in (
        "docs/tutorials/first-plugin.md",
        "docs/tutorials/worker-queue.md",
        "docs/how-to/from-mosquitto.md",
        "docs/how-to/access-rules.md",
        "docs/how-to/accounts.md",
        "docs/how-to/admin.md",
        "docs/how-to/passwords.md",
        "docs/how-to/webhooks.md",
        "docs/how-to/jwt.md",
        "docs/how-to/load-test.md",
        "docs/how-to/plugin-state.md",
        "docs/how-to/read-state.md",
        "docs/how-to/test-a-plugin.md",
        "plugins/schema/README.md",
        "plugins/auth_password/README.md",
        "examples/secure/README.md",
        "plugins/acl_file/README.md",
    )
}
"""Pages with so many commands that only the slow tests run them."""
PROMPTED = [
    pytest.param(
        page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.slow] if page in LONG else []
    )
    for page in pages()
    if any(block.kind == "console" for block in blocks(page)) and REFERENCE not in page.parents
]


@pytest.mark.parametrize("page", PROMPTED)
def test_prompts(page: Path, tmp_path: Path) -> None:
    with console(tmp_path) as reader:
        for block in blocks(page):
            if block.file:
                target = reader.folder / block.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text)
            elif block.kind == "console":
                for step in steps(block.text):
                    reader.run(step)


@pytest.mark.parametrize("block", of("sh"))
def test_shell(block: Block) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    done = subprocess.run(
        [bash, "-n"], input=block.text, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    script = re.sub(r"(^|\s)#.*$", "", block.text.replace("\\\n", " "), flags=re.M)
    lexer = shlex.shlex(script, posix=True, punctuation_chars="\n;|&<>")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    words: list[str] = []
    for word in [*lexer, "\n"]:
        if not set(word) <= set("\n;|&<>"):
            words.append(word)
            continue
        if words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= set(targets)
        if len(words) > 1 and words[0].endswith("hookmq") and words[1] in COMMANDS:
            command_parser(words[1]).parse(words[2:])
        words = []


def parse_ini(text: str) -> None:
    configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True).read_string(
        text
    )


PARSERS: dict[str, Callable[[str], object]] = {
    "toml": tomllib.loads,
    "json": json.loads,
    "ini": parse_ini,
    "js": str,
    "go": str,
    "text": str,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "python": ast.parse,
    "console": steps,
    "sh": str,
}
KINDS = {
    "python",
    "console",
    "yaml config",
    "yaml part",
    "sh",
    "toml",
    "json",
    "ini",
    "js",
    "go",
    "text",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_known_kind_and_can_be_read(page: Path) -> None:
    for block in blocks(page):
        if REFERENCE in block.page.parents:
            assert block.language in PARSERS, f"{block}: what is {block.language!r}?"
        elif not block.file:
            assert block.kind in KINDS, f"{block}: {block.kind!r} is none of {sorted(KINDS)}"
        PARSERS[block.language](block.text)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), f"{page.relative_to(ROOT)}: {target}"
        assert found == ROOT or ROOT in found.parents
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{page.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title_and_no_loose_ends(page: Path) -> None:
    text = page.read_text()
    assert text.startswith("# ")
    assert len(re.findall(r"^# ", re.sub(r"```.*?```", "", text, flags=re.S), re.M)) == 1
    assert not re.search(r"\b(TODO|FIXME|XXX|TBD)\b", prose(page))


def test_every_page_of_the_manual_can_be_found_from_the_readme() -> None:
    found = {ROOT / "README.md"}
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        for target in links(page):
            path = (page.parent / target.partition("#")[0]).resolve()
            if path.suffix == ".md" and path.exists() and path not in found:
                found.add(path)
                waiting.append(path)
    lost = {page for page in pages() if ROOT / "docs" in page.parents} - found
    assert not lost


def test_the_readme_counts_the_hooks_right() -> None:
    kinds = {spec.kind for spec in SPECS.values()}
    words = {6: "six"}
    for page in ("README.md", "CHANGELOG.md", "docs/reference/features.md"):
        assert f"{len(SPECS)} hooks of {words[len(kinds)]} kinds" in (ROOT / page).read_text()
