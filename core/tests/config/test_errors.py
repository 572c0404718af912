"""Every kind of mistake in a configuration, told at its line and column, in words that help."""

import pytest
from hookmq.config.model import loads
from hookmq.config.problems import ConfigErrors
from hookmq.errors import ConfigError

HEAD = "version: 1\nlisteners: [{name: tcp}]\n"
"""Two lines that are right; what follows begins at line 3."""

WRONG = [
    # keys
    ("brocker: {}", "3:1: brocker: unknown key (did you mean 'broker'?)"),
    ("broker: {max_qs: 1}", "3:10: broker.max_qs: unknown key (did you mean 'max_qos'?)"),
    ("broker:\n  MaxQos: 1", "4:3: broker.MaxQos: unknown key (did you mean 'max_qos'?)"),
    ("log: {colour: red}", "3:7: log.colour: unknown key (known: level, format)"),
    ("auth: {allow_anonymous: true}", "3:8: auth.allow_anonymous: unknown key (known: default)"),
    ("broker: {max_qos: 1, max_qos: 2}",
     "3:22: broker: the key 'max_qos' is given twice (first in line 3)"),
    ("loop: auto\nloop: auto", "4:1: the key 'loop' is given twice (first in line 3)"),
    ("broker: {[a, b]: 1}", "3:10: broker: a key must be a word, not a list or a mapping"),
    # types
    ("broker: 5", "3:9: broker: expected a mapping, found the number 5"),
    ("broker: [1]", "3:9: broker: expected a mapping, found a list"),
    ("broker: {max_qos: high}",
     "3:19: broker.max_qos: expected a whole number, found the text 'high'"),
    ('broker: {max_qos: "1"}',
     "3:19: broker.max_qos: expected a whole number, found the text '1' (without quotes it is a number)"),
    ("broker: {max_qos: 1.5}", "3:19: broker.max_qos: expected a whole number, found the number 1.5"),
    ("broker: {max_qos: true}", "3:19: broker.max_qos: expected a whole number, found true"),
    ("broker: {max_qos: }", "3:19: broker.max_qos: expected a whole number, found nothing"),
    ("broker: {max_qos: [1]}", "3:19: broker.max_qos: expected a whole number, found a list"),
    ("broker: {retain_available: yes}",
     "3:28: broker.retain_available: expected true or false, found the text 'yes' (write true)"),
    ("broker: {retain_available: 0}",
     "3:28: broker.retain_available: expected true or false, found the number 0 (write false)"),
    ("broker: {server_reference: 5}",
     '3:28: broker.server_reference: expected text, found the number 5 (in quotes it is text: "5")'),
    ("broker: {server_reference: true}",
     '3:28: broker.server_reference: expected text, found true (in quotes it is text: "true")'),
    ("broker: {server_reference: {a: 1}}",
     "3:28: broker.server_reference: expected text, found a mapping"),
    ("plugins: {use: a}", "3:10: plugins: expected a list, found a mapping (a list of one is written [x])"),
    ("plugins: [auth]", "3:11: plugins[0]: expected a mapping, found the text 'auth'"),
    # lists that restrict
    ("plugins: [{use: a, listeners: []}]",
     "3:31: plugins[0].listeners: expected at least one entry"
     " (leave the key out if it is not meant to restrict anything)"),
    ("plugins: [{use: a, filters: []}]",
     "3:29: plugins[0].filters: expected at least one entry"
     " (leave the key out if it is not meant to restrict anything)"),
    ("plugins: [{use: a, hooks: {authorize: {filters: []}}}]",
     "3:49: plugins[0].hooks.authorize.filters: expected at least one entry"
     " (leave the key out if it is not meant to restrict anything)"),
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
     "(set it, or give a default: {$env: NAME, default: VALUE})"),
    ("broker: {server_reference: {$file: /no/such}}",
     "3:36: broker.server_reference: the file '/no/such': No such file or directory"),
    ("broker: {server_reference: {$env: A, defualt: b}}",
     "3:38: broker.server_reference.defualt: unknown key beside $env (did you mean 'default'?)"),
    ("broker: {server_reference: {$env: 5}}",
     "3:35: broker.server_reference.$env: expected the name of a variable"),
    ("broker: {max_qos: {$env: SECRET}}",
     "3:19: broker.max_qos: expected a whole number, found what $env: SECRET holds"),
    ("auth: {default: {$env: SECRET}}",
     "3:17: auth.default: expected one of deny, allow, found what $env: SECRET holds"),
    ("broker: {max_qos: {$env: BIG}}",
     "3:19: broker.max_qos: expected at most 2, found what $env: BIG holds"),
    # plugins
    ("plugins: [{id: a}]",
     "3:11: plugins[0].use: this key is missing (`hookmq plugins --installed` lists what there is)"),
    ("plugins: [{use: a}, {use: a}]",
     "3:27: plugins[1].use: a second plugin is called 'a' (first in test.yaml:3)"),
    ("plugins: [{use: a}, {use: b, id: a}]",
     "3:34: plugins[1].id: a second plugin is called 'a' (first in test.yaml:3)"),
    ("plugins: [{use: a, id: 'x y'}]",
     "3:24: plugins[0].id: the name 'x y' of a plugin may hold letters, digits and _ . -"),
    ("plugins: [{use: a, listeners: [tpc]}]",
     "3:32: plugins[0].listeners[0]: there is no listener 'tpc' (did you mean 'tcp'?)"),
    ("plugins: [{use: a, hooks: {on_publsh: {}}}]",
     "3:28: plugins[0].hooks.on_publsh: there is no such hook (did you mean 'on_publish'?)"),
    ("plugins: [{use: a, hooks: {on_publish: {timeot: 1s}}}]",
     "3:41: plugins[0].hooks.on_publish.timeot: unknown key (did you mean 'timeout'?)"),
    ("plugins: [{use: a, hooks: {on_publish: {timeout: never}}}]",
     "3:50: plugins[0].hooks.on_publish.timeout: expected a duration such as 5s or 250ms, found the text 'never'"),
    ("plugins: [{use: a, filters: ['a/#/b']}]",
     "3:30: plugins[0].filters[0]: '#' is not a whole and the last level"),
    # no YAML
    ("broker: {max_qos: !!int 1}", "3:19: the tag tag:yaml.org,2002:int is not accepted"),
    ("broker: !!python/object:os.system {}", "3:9: the tag tag:yaml.org,2002:python/object:os.system is not accepted"),
    ("broker: [1, 2", "4:1: not YAML: while parsing a flow sequence: did not find expected ',' or ']'"),
    ("broker: *nobody", "3:9: not YAML: found undefined alias"),
    ("---\nversion: 1", "4:1: a second document begins here (a configuration is one YAML document)"),
]  # fmt: skip

LISTENERS = [
    ("[]", "2:12: listeners: expected at least one listener (such as {name: tcp, bind: \"127.0.0.1:1883\"})"),
    ("[{name: a}, {name: a, bind: ':1'}]",
     "2:31: listeners[1].name: a second listener is called 'a' (first in test.yaml:2)"),
    ("[{name: a}, {name: b}]",
     "2:24: listeners[1].bind: 127.0.0.1:1883 is already another listener's (the other is in test.yaml:2)"),
    ("[{name: a, bind: '*:1883'}, {name: b}]",
     "2:40: listeners[1].bind: 127.0.0.1:1883 is already another listener's (the other is in test.yaml:2)"),
    ("[{name: a, bind: '0.0.0.0:9'}, {name: b, bind: 'localhost:9'}]",
     "2:59: listeners[1].bind: localhost:9 is already another listener's (the other is in test.yaml:2)"),
    ("[{bind: '127.0.0.1'}]",
     "2:20: listeners[0].bind: expected HOST:PORT, [IPv6]:PORT or *:PORT, found '127.0.0.1'"),
    ("[{bind: '::1:1883'}]", "2:20: listeners[0].bind: an IPv6 address stands in brackets: [::1]:1883"),
    ("[{bind: 1883}]",
     '2:20: listeners[0].bind: expected text, found the number 1883 (in quotes it is text: "1883")'),
    ("[{type: tcpp}]",
     "2:20: listeners[0].type: expected one of tcp, tls, ws, wss, unix, http, https, found the text 'tcpp'"
     " (did you mean 'tcp'?)"),
    ("[{http: {token: a}}]",
     "2:14: listeners[0].http: a listener of type tcp does not serve HTTP (type: http)"),
    ("[{settings: {a: 1}}]",
     "2:14: listeners[0].settings: a listener of type tcp is not a plugin's"),
    ("[{type: http, bind: '*:9090'}]",
     "2:13: listeners[0].http: *:9090 is reached from the network and asks for no token"
     " (set http.token, such as {$file: PATH}, or http.insecure: true)"),
    ("[{type: https}]", "2:20: listeners[0].type: https needs tls: with certificate and key"),
    ("[{type: tls}]", "2:20: listeners[0].type: tls needs tls: with certificate and key"),
    ("[{tls: {certificate: a}}]", "2:19: listeners[0].tls: a listener of type tcp does not use it"),
    ("[{type: tls, tls: {}}]",
     "2:30: listeners[0].tls.certificate: a TLS listener needs one (a PEM file)"),
    ("[{websocket: {path: /a}}]",
     "2:14: listeners[0].websocket: a listener of type tcp is no WebSocket (type: ws)"),
    ("[{type: ws, websocket: {path: mqtt}}]",
     "2:42: listeners[0].websocket.path: expected a path that begins with /, found 'mqtt'"),
    ("[{identity: common_name}]",
     "2:24: listeners[0].identity: needs tls.client_certificates: required"),
    ("[{mode: '9'}]",
     "2:20: listeners[0].mode: expected octal permission bits such as 0660, found '9'"),
    ("[{proxy_protocol: v2}]",
     "2:30: listeners[0].proxy_protocol: needs trusted_proxies (the load balancer's networks)"),
    ("[{versions: ['4']}]",
     "2:25: listeners[0].versions[0]: expected one of 3.1, 3.1.1, 5, found the text '4'"),
    ("[{versions: [5]}]",
     "2:25: listeners[0].versions[0]: expected one of 3.1, 3.1.1, 5, found the number 5"),
    ("[{trusted_proxies: [10.0.0.0/40]}]",
     "2:31: listeners[0].trusted_proxies: '10.0.0.0/40' does not appear to be an IPv4 or IPv6 network"),
    (
        "[{mount_point: a}]",
        "2:27: listeners[0].mount_point: expected a mount point that ends with '/', found 'a' (did you mean 'a/'?)",
    ),
    ("[{mount_point: a/#}]", "2:27: listeners[0].mount_point: topic name holds a wildcard"),
]  # fmt: skip

ENVIRON = {"SECRET": "hunter2", "BIG": "7"}


def error_of(text: str, *options: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loads(text, "test.yaml", options, ENVIRON | environ)
    return caught.value


@pytest.mark.parametrize(("text", "expected"), WRONG, ids=[text for text, _ in WRONG])
def test_the_mistake_is_told_at_its_place(text: str, expected: str) -> None:
    assert str(error_of(HEAD + text + "\n")) == f"test.yaml:{expected}"


@pytest.mark.parametrize(("text", "expected"), LISTENERS, ids=[text for text, _ in LISTENERS])
def test_mistakes_of_listeners(text: str, expected: str) -> None:
    assert str(error_of(f"version: 1\nlisteners: {text}\n")) == f"test.yaml:{expected}"


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


def test_what_is_required_is_named() -> None:
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
