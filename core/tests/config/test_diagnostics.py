"""Test that every kind of configuration error is reported with its line, its column and a helpful message."""

import pytest
from hookmq.config.diagnostics import ConfigErrors
from hookmq.config.model import loads
from hookmq.model.errors import ConfigError

HEAD = "version: 1\nlisteners: [{name: tcp}]\n"
"""Two valid lines. The tested text starts at line 3."""

WRONG = [
    # keys
    ("brocker: {}", "3:1: brocker: unknown key (did you mean 'broker'?)"),
    ("broker: {max_qs: 1}", "3:10: broker.max_qs: unknown key (did you mean 'max_qos'?)"),
    ("broker:\n  MaxQos: 1", "4:3: broker.MaxQos: unknown key (did you mean 'max_qos'?)"),
    ("log: {colour: red}", "3:7: log.colour: unknown key (known: level, format)"),
    ("auth: {allow_anonymous: true}", "3:8: auth.allow_anonymous: unknown key (known: default)"),
    ("broker: {max_qos: 1, max_qos: 2}",
     "3:22: broker: duplicate key 'max_qos' (the first is in line 3)"),
    ("loop: auto\nloop: auto", "4:1: duplicate key 'loop' (the first is in line 3)"),
    ("broker: {[a, b]: 1}", "3:10: broker: a key must be a word, not a list or a mapping"),
    # types
    ("broker: 5", "3:9: broker: expected a mapping, found the number 5"),
    ("broker: [1]", "3:9: broker: expected a mapping, found a list"),
    ("broker: {max_qos: high}",
     "3:19: broker.max_qos: expected a whole number, found the text 'high'"),
    ('broker: {max_qos: "1"}',
     "3:19: broker.max_qos: expected a whole number, found the text '1' (remove the quotes to make it a number)"),
    ("broker: {max_qos: 1.5}", "3:19: broker.max_qos: expected a whole number, found the number 1.5"),
    ("broker: {max_qos: true}", "3:19: broker.max_qos: expected a whole number, found true"),
    ("broker: {max_qos: }", "3:19: broker.max_qos: expected a whole number, found nothing"),
    ("broker: {max_qos: [1]}", "3:19: broker.max_qos: expected a whole number, found a list"),
    ("broker: {retain_available: yes}",
     "3:28: broker.retain_available: expected true or false, found the text 'yes' (write true)"),
    ("broker: {retain_available: 0}",
     "3:28: broker.retain_available: expected true or false, found the number 0 (write false)"),
    ("broker: {server_reference: 5}",
     '3:28: broker.server_reference: expected text, found the number 5 (quote it to make it text: "5")'),
    ("broker: {server_reference: true}",
     '3:28: broker.server_reference: expected text, found true (quote it to make it text: "true")'),
    ("broker: {server_reference: {a: 1}}",
     "3:28: broker.server_reference: expected text, found a mapping"),
    ("plugins: {use: a}", "3:10: plugins: expected a list, found a mapping (write a list of one as [x])"),
    ("plugins: [auth]", "3:11: plugins[0]: expected a mapping, found the text 'auth'"),
    # lists that restrict
    ("plugins: [{use: a, listeners: []}]",
     "3:31: plugins[0].listeners: expected at least one entry"
     " (remove the key to restrict nothing)"),
    ("plugins: [{use: a, filters: []}]",
     "3:29: plugins[0].filters: expected at least one entry"
     " (remove the key to restrict nothing)"),
    ("plugins: [{use: a, hooks: {authorize: {filters: []}}}]",
     "3:49: plugins[0].hooks.authorize.filters: expected at least one entry"
     " (remove the key to restrict nothing)"),
    # bounds
    ("broker: {max_qos: 3}", "3:19: broker.max_qos: expected at most 2, found 3"),
    ("broker: {max_connections: 0}", "3:27: broker.max_connections: expected at least 1, found 0"),
    ("broker: {max_qos: -1}", "3:19: broker.max_qos: expected at least 0, found -1"),
    ("broker: {max_packet_size: 300MiB}",
     "3:27: broker.max_packet_size: expected at most 268435460, found 300MiB"),
    ("session: {max_expiry: -1}", "3:23: session.max_expiry: expected at least 0s, found -1s"),
    # units
    ("session: {max_expiry: soon}",
     "3:23: session.max_expiry: expected a duration such as 5s or 250ms, found the text 'soon'"),
    ("session: {max_expiry: 5 parsecs}",
     "3:23: session.max_expiry: expected a duration such as 5s or 250ms, found the text '5 parsecs'"),
    ("session: {max_expiry: .inf}",
     "3:23: session.max_expiry: expected a duration such as 5s or 250ms, found the number inf"),
    ("session: {queue_bytes: 1.3B}",
     "3:24: session.queue_bytes: expected a size such as 64KiB or a number of bytes, found the text '1.3B'"),
    ("session: {queue_bytes: big}",
     "3:24: session.queue_bytes: expected a size such as 64KiB or a number of bytes, found the text 'big'"),
    ("session: {queue_bytes: 1.5}",
     "3:24: session.queue_bytes: expected a size such as 64KiB or a number of bytes, found the number 1.5"),
    # choices
    ("auth: {default: alow}",
     "3:17: auth.default: expected one of deny, allow, found the text 'alow' (did you mean 'allow'?)"),
    ("auth: {default: true}", "3:17: auth.default: expected one of deny, allow, found true"),
    ("loop: trio", "3:7: loop: expected one of auto, asyncio, uvloop, found the text 'trio'"),
    ("broker: {shared_groups: {g: randm}}",
     "3:29: broker.shared_groups.g: expected one of round_robin, random, sticky, hash_client, hash_topic, "
     "least_inflight, found the text 'randm' (did you mean 'random'?)"),
    # indirections
    ("broker: {server_reference: {$env: NOPE}}",
     "3:35: broker.server_reference: the environment variable NOPE is not set "
     "(set it, or add a default: {$env: NAME, default: VALUE})"),
    ("broker: {server_reference: {$file: /no/such}}",
     "3:36: broker.server_reference: the file '/no/such': No such file or directory"),
    ("broker: {server_reference: {$env: A, defualt: b}}",
     "3:38: broker.server_reference.defualt: unknown key next to $env (did you mean 'default'?)"),
    ("broker: {server_reference: {$env: 5}}",
     "3:35: broker.server_reference.$env: expected the name of a variable"),
    ("broker: {max_qos: {$env: SECRET}}",
     "3:19: broker.max_qos: expected a whole number, found the value of $env: SECRET"),
    ("auth: {default: {$env: SECRET}}",
     "3:17: auth.default: expected one of deny, allow, found the value of $env: SECRET"),
    ("broker: {max_qos: {$env: BIG}}",
     "3:19: broker.max_qos: expected at most 2, found the value of $env: BIG"),
    # plugins
    ("plugins: [{id: a}]",
     "3:11: plugins[0].use: this key is missing (`hookmq plugins --installed` lists all plugins)"),
    ("plugins: [{use: a}, {use: a}]",
     "3:27: plugins[1].use: two plugins have the name 'a' (the first is at test.yaml:3)"),
    ("plugins: [{use: a}, {use: b, id: a}]",
     "3:34: plugins[1].id: two plugins have the name 'a' (the first is at test.yaml:3)"),
    ("plugins: [{use: a, id: 'x y'}]",
     "3:24: plugins[0].id: the name 'x y' of a plugin may contain only letters, digits and _ . -"),
    ("plugins: [{use: a, listeners: [tpc]}]",
     "3:32: plugins[0].listeners[0]: there is no listener 'tpc' (did you mean 'tcp'?)"),
    ("plugins: [{use: a, hooks: {on_publsh: {}}}]",
     "3:28: plugins[0].hooks.on_publsh: there is no such hook (did you mean 'on_publish'?)"),
    ("plugins: [{use: a, hooks: {on_publish: {timeot: 1s}}}]",
     "3:41: plugins[0].hooks.on_publish.timeot: unknown key (did you mean 'timeout'?)"),
    ("plugins: [{use: a, hooks: {on_publish: {timeout: never}}}]",
     "3:50: plugins[0].hooks.on_publish.timeout: expected a duration such as 5s or 250ms, found the text 'never'"),
    ("plugins: [{use: a, filters: ['a/#/b']}]",
     "3:30: plugins[0].filters[0]: '#' is not the whole last level"),
    # not YAML
    ("broker: {max_qos: !!int 1}", "3:19: the tag tag:yaml.org,2002:int is not supported"),
    ("broker: !!python/object:os.system {}", "3:9: the tag tag:yaml.org,2002:python/object:os.system is not supported"),
    ("broker: [1, 2", "4:1: not YAML: while parsing a flow sequence: did not find expected ',' or ']'"),
    ("broker: *nobody", "3:9: not YAML: found undefined alias"),
    ("---\nversion: 1", "4:1: a second document starts here (a configuration is one YAML document)"),
]  # fmt: skip


ENVIRON = {"SECRET": "hunter2", "BIG": "7"}


def error_of(text: str, *options: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loads(text, "test.yaml", options, ENVIRON | environ)
    return caught.value


@pytest.mark.parametrize(("text", "expected"), WRONG, ids=[text for text, _ in WRONG])
def test_the_mistake_is_told_at_its_place(text: str, expected: str) -> None:
    assert str(error_of(HEAD + text + "\n")) == f"test.yaml:{expected}"


def test_all_mistakes_are_told_at_once_in_their_order() -> None:
    error = error_of(
        "version: 2\nlisteners:\n  - {name: a}\n  - {name: a}\nbroker: {max_qos: 9, x: 1}\nlop: auto\n"
    )
    assert isinstance(error, ConfigErrors)
    assert [(one.line, one.column) for one in error.errors] == [
        (1, 10), (4, 5), (4, 12), (5, 19), (5, 22), (6, 1),
    ]  # fmt: skip
    assert str(error).splitlines()[0] == "test.yaml:1:10: version: expected 1, found the number 2"
    assert (error.line, error.column, error.exit_code) == (1, 10, 2)


def test_missing_required_keys_are_named() -> None:
    error = error_of("broker: {}\n")
    assert str(error).splitlines() == [
        "test.yaml:1:1: version: this key is missing",
        "test.yaml:1:1: listeners: this key is missing",
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]", "hello", "5"])
def test_a_document_that_is_no_mapping(text: str) -> None:
    assert error_of(text).line == 1


def test_secrets_are_in_no_error_text() -> None:
    texts = [
        "broker: {max_qos: {$env: SECRET}}",
        "broker: {retain_available: {$env: SECRET}}",
        "session: {max_expiry: {$env: SECRET}}",
        "session: {queue_bytes: {$env: SECRET}}",
        "plugins: {$env: SECRET}",
        "loop: {$env: SECRET}",
    ]
    for text in texts:
        assert "hunter2" not in str(error_of(HEAD + text))


def test_a_wrong_key_in_a_secret_place_does_not_show_it() -> None:
    text = "version: 1\nlisteners: [{type: tls, tls: {certificate: a, key_password: [hunter2]}}]\n"
    assert str(error_of(text)).endswith("key_password: expected text, found a secret")
