"""Test the two references to secrets, ``{$env: NAME}`` and ``{$file: PATH}``."""

import pathlib

import pytest
from binding_samples import Sample
from hookmq.config.binding import ConfigBinder
from hookmq.config.diagnostics import ConfigProblems
from hookmq.config.model import loads
from hookmq.config.yaml_document import parse
from hookmq.model.errors import ConfigError


def test_indirections_are_resolved_and_marked_secret(tmp_path: pathlib.Path) -> None:
    (tmp_path / "key").write_text("top secret\n")
    problems = ConfigProblems()
    binder = ConfigBinder(problems, {"PORT": "5", "NAME": "n"}, tmp_path)
    sample = binder.bind(
        parse(
            "count: {$env: PORT}\ntext: {$file: key}\nnames: [{$env: NAME}, b]\n"
            "ratio: {$env: NO, default: 2.5}\nanything: {deep: {$env: PORT}}\n",
            "f",
        ),
        Sample,
    )
    assert problems.errors == []
    assert (sample.count, sample.text, sample.names) == (5, "top secret", ("n", "b"))
    assert (sample.ratio, sample.anything) == (2.5, {"deep": "5"})
    secret = {path for path, node in binder.nodes.items() if node.secret}
    assert secret == {("count",), ("text",), ("names", 0), ("anything", "deep")}


def test_an_indirection_is_checked_as_if_it_stood_there() -> None:
    text = "version: 1\nlisteners: [{name: a}, {name: {$env: N}, bind: {$env: B}}]\n"
    with pytest.raises(ConfigError) as caught:
        loads(text, "f", (), {"N": "a", "B": "127.0.0.1:1883"})
    assert "two listeners have the name 'a'" in str(caught.value)
    assert "another listener uses" in str(caught.value)
