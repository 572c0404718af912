"""Test the options that name a configuration."""

import argparse
import pathlib

import pytest
from door import write
from hookmq.cli import main
from hookmq.cli.config_args import add_source, chosen, config_of, plugin_of
from hookmq.model.errors import ConfigError
from hookmq.plugin import Plugin

Captured = pytest.CaptureFixture[str]


def test_the_folder_of_the_store_is_told_and_chosen(
    door: None, tmp_path: pathlib.Path, capsys: Captured
) -> None:
    path = write(tmp_path, "plugins: [{use: door}]\n")
    assert main(["check", "-c", path, "--data-dir", "x"]) == 2
    err = capsys.readouterr().err
    assert f"option --data-dir: {path} has no plugin 'storage' that keeps state" in err
    assert main(["check", "-c", path]) == 0
    assert "to keep them, add the plugin storage" in capsys.readouterr().out
    assert main(["config", "show", "--data-dir", "some/where", "--no-origins"]) == 0
    assert "path: some/where\n" in capsys.readouterr().out
    assert main(["config", "show", "--data-dir", "1", "-o", "plugins.0.id=x"]) == 0
    assert "-o plugins.0.config.path" in capsys.readouterr().out


def test_a_command_sees_the_plugins_of_its_class_and_where_they_apply(
    door: None, tmp_path: pathlib.Path
) -> None:
    path = write(tmp_path, "plugins: [{use: door}, {use: door, id: back, listeners: [tcp]}]\n")
    parser = argparse.ArgumentParser()
    add_source(parser)
    parser.add_argument("--plugin")
    found = chosen(parser.parse_args(["-c", path]), Plugin)
    assert (found.source, found.listeners) == (path, ("tcp",))
    assert [(one.id, one.plugin.id, one.listeners) for one in found.plugins] == [
        ("door", "door", None),
        ("back", "back", ("tcp",)),
    ]
    assert (
        plugin_of(parser.parse_args(["-c", path, "--plugin", "back"]), Plugin, "door").id == "back"
    )
    with pytest.raises(ConfigError, match="several plugins door: door, back"):
        plugin_of(parser.parse_args(["-c", path]), Plugin, "door")
    with pytest.raises(ConfigError, match="no plugin door with the id 'x'"):
        plugin_of(parser.parse_args(["-c", path, "--plugin", "x"]), Plugin, "door")


def test_a_text_replaces_the_file_but_not_the_options(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "none.yaml"
    (tmp_path / "reference").write_text("other:1883\n")
    parser = argparse.ArgumentParser()
    add_source(parser)
    arguments = parser.parse_args(["-c", str(path), "-o", "broker.max_qos=1", "--data-dir", "x"])
    text = (
        "version: 1\nlisteners: [{name: a, bind: '127.0.0.1:0'}]\nplugins: [{use: storage}]\n"
        "broker: {server_reference: {$file: reference}}\n"
    )
    config = config_of(arguments, text)
    assert (config.source, config.broker.max_qos) == ("document", 1)
    assert config.broker.server_reference == "other:1883"  # next to the configuration file
    assert config.plugins[0].config["path"] == "x"
