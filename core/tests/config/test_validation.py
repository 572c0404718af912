"""Test that contradictory configuration values are reported with their positions."""

import pytest
from hookmq.config.model import loads
from hookmq.model.errors import ConfigError

LISTENERS = [
    ("[]", "2:12: listeners: expected at least one listener (such as {name: tcp, bind: \"127.0.0.1:1883\"})"),
    ("[{name: a}, {name: a, bind: ':1'}]",
     "2:31: listeners[1].name: two listeners have the name 'a' (the first is at test.yaml:2)"),
    ("[{name: a}, {name: b}]",
     "2:24: listeners[1].bind: another listener uses 127.0.0.1:1883 (the other is at test.yaml:2)"),
    ("[{name: a, bind: '*:1883'}, {name: b}]",
     "2:40: listeners[1].bind: another listener uses 127.0.0.1:1883 (the other is at test.yaml:2)"),
    ("[{name: a, bind: '0.0.0.0:9'}, {name: b, bind: 'localhost:9'}]",
     "2:59: listeners[1].bind: another listener uses localhost:9 (the other is at test.yaml:2)"),
    ("[{bind: '127.0.0.1'}]",
     "2:20: listeners[0].bind: expected HOST:PORT, [IPv6]:PORT or *:PORT, found '127.0.0.1'"),
    ("[{bind: '::1:1883'}]", "2:20: listeners[0].bind: an IPv6 address needs brackets: [::1]:1883"),
    ("[{bind: 1883}]",
     '2:20: listeners[0].bind: expected text, found the number 1883 (quote it to make it text: "1883")'),
    ("[{type: tcpp}]",
     "2:20: listeners[0].type: expected one of tcp, tls, ws, wss, unix, http, https, found the text 'tcpp'"
     " (did you mean 'tcp'?)"),
    ("[{http: {token: a}}]",
     "2:14: listeners[0].http: a listener of type tcp does not serve HTTP (type: http)"),
    ("[{settings: {a: 1}}]",
     "2:14: listeners[0].settings: a listener of type tcp is not a plugin's"),
    ("[{type: http, bind: '*:9090'}]",
     "2:13: listeners[0].http: *:9090 can be reached from the network without a token"
     " (set http.token, such as {$file: PATH}, or http.insecure: true)"),
    ("[{type: https}]", "2:20: listeners[0].type: https needs tls: with certificate and key"),
    ("[{type: tls}]", "2:20: listeners[0].type: tls needs tls: with certificate and key"),
    ("[{tls: {certificate: a}}]", "2:19: listeners[0].tls: a listener of type tcp does not use it"),
    ("[{type: tls, tls: {}}]",
     "2:30: listeners[0].tls.certificate: a TLS listener needs one (a PEM file)"),
    ("[{websocket: {path: /a}}]",
     "2:14: listeners[0].websocket: a listener of type tcp does not use WebSocket (type: ws)"),
    ("[{type: ws, websocket: {path: mqtt}}]",
     "2:42: listeners[0].websocket.path: expected a path that starts with /, found 'mqtt'"),
    ("[{identity: common_name}]",
     "2:24: listeners[0].identity: needs tls.client_certificates: required"),
    ("[{mode: '9'}]",
     "2:20: listeners[0].mode: expected octal permission bits such as 0660, found '9'"),
    ("[{proxy_protocol: v2}]",
     "2:30: listeners[0].proxy_protocol: needs trusted_proxies (the networks of the load balancer)"),
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
    ("[{mount_point: a/#}]", "2:27: listeners[0].mount_point: topic name contains a wildcard"),
]  # fmt: skip


ENVIRON = {"SECRET": "hunter2", "BIG": "7"}


def error_of(text: str, *options: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loads(text, "test.yaml", options, ENVIRON | environ)
    return caught.value


@pytest.mark.parametrize(("text", "expected"), LISTENERS, ids=[text for text, _ in LISTENERS])
def test_mistakes_of_listeners(text: str, expected: str) -> None:
    assert str(error_of(f"version: 1\nlisteners: {text}\n")) == f"test.yaml:{expected}"


def test_port_0_never_clashes() -> None:
    text = "version: 1\nlisteners: [{name: a, bind: ':0'}, {name: b, bind: ':0'}]\n"
    assert len(loads(text, environ={}).listeners) == 2
