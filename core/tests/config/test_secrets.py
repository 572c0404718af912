"""Test both kinds of references to secrets, ``{$env: NAME}`` and ``{$file: PATH}``."""

import dataclasses
import pathlib
from typing import Any

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
    assert "two listeners have the name (the value of $env: N)" in str(caught.value)
    assert "another listener uses" in str(caught.value)


@dataclasses.dataclass(frozen=True)
class Echo:
    """A settings class whose error message quotes some of its values."""

    message: str
    names: tuple[str, ...] = ()
    other: str = ""

    def __post_init__(self) -> None:
        shown = f"{self.names[0] if self.names else ''!r} {self.other!r} {self.other[:20].upper()}"
        raise ConfigError(self.message.replace("%", shown), hint=shown)


class Model:
    """A settings class that validates itself, like a pydantic model."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return {"properties": {"names": {}, "other": {}}}

    @staticmethod
    def model_validate(given: dict[str, Any]) -> None:
        class Refused(ValueError):
            def errors(self) -> list[dict[str, Any]]:
                found = [{"loc": ("names", 0), "msg": f"wrong: {given['names'][0].upper()}"}]
                return [*found, {"loc": (), "msg": given["names"][0].upper()}]

        raise Refused(str(given))


@pytest.mark.parametrize(
    "message", ["names: not %", "other: not %", "message: not %", "message: b", "%", "a: b"]
)
@pytest.mark.parametrize("content", ["hunter2", "hunter2 it's\nlong enough to be cut"])
def test_no_class_that_refuses_its_values_shows_one_of_a_file(
    tmp_path: pathlib.Path, message: str, content: str
) -> None:
    (tmp_path / "key").write_text(content)
    for text in ("names: [{$file: key}]", "other: {$file: key}"):
        problems = ConfigProblems()
        node = parse(f"message: '{message}'\n{text}\n", "f")
        ConfigBinder(problems, {}, tmp_path).bind(node, Echo)
        (error,) = problems.errors
        assert "hunter2" not in repr((str(error), error.hint)).lower()
        assert "may contain a value of $env or $file" in error.hint
    problems = ConfigProblems()
    ConfigBinder(problems, {}, tmp_path).bind(parse("names: [{$file: key}]\n", "f"), Model)
    assert len(problems.errors) == 2
    assert "hunter2" not in "".join(map(str, problems.errors)).lower()


def test_a_class_that_refuses_its_values_shows_those_of_the_document() -> None:
    problems = ConfigProblems()
    ConfigBinder(problems, {}).bind(parse("message: 'other: not %'\nother: this\n", "f"), Echo)
    assert "'this'" in str(problems.errors[0])
