"""Test the requests to the service and how its responses are interpreted. Only a clear "allow" allows anything."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hookmq.plugin import (
    Accept,
    Action,
    Allow,
    Certificate,
    ClientInfo,
    Connect,
    Deny,
    Limits,
    Message,
    Peer,
    PluginError,
    ReasonCode,
    Scope,
    Subscription,
)
from hookmq_auth_http.answers import Undecided
from hookmq_auth_http.plugin import AuthHttpPlugin
from hookmq_auth_http.values import connect_values
from hookmq_testing import Harness, HookRecorder, load_plugins, run_command
from hypothesis import given
from hypothesis import strategies as st

Start = Callable[..., Awaitable[AuthHttpPlugin]]
SECRET = "s3cr3t/?&=%"


def client(**changes: Any) -> ClientInfo:
    known: dict[str, Any] = {
        "client_id": "c/1", "version": 5, "username": "ann", "peer": Peer("192.0.2.9", 99), "scope": Scope("tcp"),
    }  # fmt: skip
    return ClientInfo(**{**known, **changes})


def connect(password: bytes | None = SECRET.encode()) -> Connect:
    return Connect("c/1", 5, True, 60, "ann", password)


async def ask(
    plugin: AuthHttpPlugin, action: Action, topic: str, who: ClientInfo | None = None
) -> Any:
    message = None if action is Action.SUBSCRIBE else Message(topic, b"", 1, True)
    wanted = Subscription(topic, topic, 2) if action is Action.SUBSCRIBE else None
    answer = plugin.authorize(who or client(), action, topic, message, wanted)
    if answer is None or isinstance(answer, Allow | Deny):
        return answer
    return await answer


# requests -------------------------------------------------------------------------------------------------------------


async def test_hookmqs_own_contract(service: Any, start: Start) -> None:
    certificate = Certificate("cn", "CN=cn", (), "ab")
    plugin = await start(
        authenticate={"url": service.url + "/in"}, authorize={"url": service.url + "/may"}
    )
    who = client(peer=Peer("192.0.2.9", 99, "tls", certificate))
    assert await plugin.on_connect(who, connect()) == Accept("ann", {})
    await ask(plugin, Action.SUBSCRIBE, "a/#", who)
    await ask(plugin, Action.WILL, "w", who)
    (first, second, third) = service.requests
    assert first[:3] == (
        "POST", "/in",
        {
            "clientid": "c/1", "username": "ann", "password": SECRET, "peerhost": "192.0.2.9", "listener": "tcp",
            "version": 5, "cert_common_name": "cn",
        },
    )  # fmt: skip
    assert second[:3] == (
        "POST", "/may",
        {
            "clientid": "c/1", "username": "ann", "identity": "", "peerhost": "192.0.2.9", "listener": "tcp",
            "action": "subscribe", "topic": "a/#", "qos": 2, "retain": False, "share": "",
        },
    )  # fmt: skip
    assert third[2] | {"action": "publish", "topic": "w", "qos": 1, "retain": True} == third[2]


async def test_templates_cannot_be_broken_out_of(service: Any, start: Start) -> None:
    url = service.url + "/u/${username}?c=${clientid}&p=${password}"
    body = {"user": "u:${username}", "n": "${version}", "b": "${clean_start}"}
    plugin = await start(
        authenticate={"url": url, "format": "form", "headers": {"X-C": "${clientid}"}, "body": body}
    )
    who = client(username="a/../b?x=1&y#z%00", client_id='c"}\\')
    await plugin.on_connect(who, connect())
    method, path, sent, headers = service.requests[0]
    assert (method, path) == (
        "POST",
        "/u/a%2F..%2Fb%3Fx%3D1%26y%23z%2500?c=c%22%7D%5C&p=s3cr3t%2F%3F%26%3D%25",
    )
    assert sent == {"user": "u:a/../b?x=1&y#z%00", "n": "5", "b": "true"}
    assert headers["X-C"] == 'c"}\\'
    with pytest.raises(Undecided, match="control character"):
        await plugin.on_connect(client(client_id="c\r\nX: y"), connect())
    assert len(service.requests) == 1


async def test_dots_do_not_leave_the_path(service: Any, start: Start) -> None:
    plugin = await start(authenticate={"url": service.url + "/users/${username}/in"})
    question = plugin._authenticate
    assert question is not None
    url = question.request(connect_values(client(username=".."), "")).url
    assert url == service.url + "/users/%2E%2E/in"


async def test_get_puts_everything_into_the_query(service: Any, start: Start) -> None:
    plugin = await start(
        contract="mosquitto-go-auth", authorize={"url": service.url + "/acl?k=1", "method": "get"}
    )
    service.answer((200, b"ok"))
    assert await ask(plugin, Action.SUBSCRIBE, "a/+") == Allow(30)
    assert service.requests[0][:2] == (
        "GET",
        "/acl?k=1&username=ann&clientid=c%2F1&topic=a%2F%2B&acc=4",
    )


async def test_claims_in_templates(service: Any, start: Start) -> None:
    body = {"tenant": "${claim.org.name}", "none": "${claim.nothing}", "list": "${claim.roles}"}
    plugin = await start(authorize={"url": service.url, "body": body})
    await ask(plugin, Action.PUBLISH, "t", client(claims={"org": {"name": "acme"}, "roles": ["x"]}))
    assert service.requests[0][2] == {"tenant": "acme", "none": None, "list": None}


# responses ------------------------------------------------------------------------------------------------------------

REFUSED = Deny(ReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize(
    ("contract", "status", "body", "verdict"),
    [
        ("hookmq", 200, {"result": "allow"}, Accept("ann", {})),
        ("hookmq", 204, b"", Accept("ann", {})),
        ("hookmq", 200, {"result": "ignore"}, None),
        ("hookmq", 200, {"result": "deny"}, REFUSED),
        ("hookmq", 200, {"result": "deny", "code": 0x8A, "reason": "b"}, Deny(ReasonCode.BANNED, "b")),
        ("hookmq", 401, {"result": "allow"}, REFUSED),
        ("hookmq", 403, b"go away", REFUSED),
        (
            "hookmq", 200,
            {"result": "allow", "identity": "A", "claims": {"x": 1}, "expires_at": 2e9, "limits": {"queue_messages": 5}},
            Accept("A", {"x": 1}, 2e9, Limits(queue_messages=5)),
        ),
        (
            "hookmq", 200, {"result": "allow", "permissions": {"publish": ["a"]}, "superuser": False},
            Accept("ann", {"hookmq:http": {"permissions": {"publish": ["a"]}}}),
        ),
        ("hookmq", 200, {"result": "allow", "superuser": True}, Accept("ann", {"hookmq:http": {"superuser": True}})),
        ("hookmq", 200, {"result": "allow", "claims": {"hookmq:http": {"superuser": True}}}, Accept("ann", {})),
        ("emqx", 200, {"result": "allow", "is_superuser": False, "other": 1}, Accept("ann", {})),
        ("emqx", 200, {"result": "allow", "client_attrs": {"a": "b"}, "expire_at": 2e9}, Accept("ann", {"a": "b"}, 2e9)),
        (
            "emqx", 200,
            {"result": "allow", "acl": [
                {"permission": "allow", "action": "publish", "topic": "c/${clientid}", "qos": [0, 1], "retain": "all"},
            ]},
            Accept("ann", {"hookmq:http": {"permissions": [
                {"permission": "allow", "action": "publish", "topic": "c/%c", "qos": 1},
            ]}}),
        ),
        ("emqx", 200, {"result": "deny"}, REFUSED),
        ("emqx", 200, {"result": "ignore"}, None),
        ("emqx", 401, b"", REFUSED),
        ("mosquitto-go-auth", 200, b"", Accept("ann", {})),
        ("mosquitto-go-auth", 200, b" OK \n", Accept("ann", {})),
        ("mosquitto-go-auth", 200, {"ok": True, "error": ""}, Accept("ann", {})),
        ("mosquitto-go-auth", 200, {"Ok": False, "Error": "x"}, Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)),
        ("mosquitto-go-auth", 200, b"no such user", Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)),
        ("mosquitto-go-auth", 404, b"ok", Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)),
    ],
)  # fmt: skip
async def test_answers_to_connect(
    contract: str, status: int, body: Any, verdict: Any, service: Any, start: Start
) -> None:
    service.answer((status, body))
    plugin = await start(contract=contract, authenticate={"url": service.url})
    assert await plugin.on_connect(client(), connect()) == verdict


@pytest.mark.parametrize(
    ("contract", "status", "body", "verdict"),
    [
        ("hookmq", 200, {"result": "allow"}, Allow(30)),
        ("hookmq", 200, {"result": "allow", "max_qos": 1, "cache": 5}, Allow(5, 1)),
        ("hookmq", 204, b"", Allow(30)),
        (
            "hookmq",
            200,
            {"result": "deny", "code": 151},
            Deny(ReasonCode.QUOTA_EXCEEDED, cache_for=3),
        ),
        ("hookmq", 200, {"result": "ignore"}, None),
        ("hookmq", 403, {"result": "deny"}, Deny(cache_for=3)),
        ("emqx", 200, {"result": "allow"}, Allow(30)),
        ("emqx", 204, b"", Allow(30)),
        ("emqx", 200, {"result": "deny"}, Deny(cache_for=3)),
        ("emqx", 200, {"result": "ignore"}, None),
        ("mosquitto-go-auth", 200, b"", Allow(30)),
        ("mosquitto-go-auth", 200, {"ok": False}, Deny(cache_for=3)),
        ("mosquitto-go-auth", 400, {"ok": False}, Deny(cache_for=3)),
    ],
)
async def test_answers_to_authorize(
    contract: str, status: int, body: Any, verdict: Any, service: Any, start: Start
) -> None:
    service.answer((status, body))
    plugin = await start(contract=contract, authorize={"url": service.url})
    for action in (Action.PUBLISH, Action.SUBSCRIBE, Action.WILL):
        assert await ask(plugin, action, "a/b") == verdict


@pytest.mark.parametrize(
    ("contract", "status", "body", "decided"),
    [
        ("hookmq", 403, b"", False),
        ("hookmq", 403, b"<html>WAF</html>", False),
        ("hookmq", 403, {"error": "forbidden"}, False),
        ("hookmq", 403, {"result": "deny"}, True),
        ("hookmq", 200, {"result": "deny"}, True),
        ("emqx", 403, b"", False),
        ("emqx", 403, {"result": "deny"}, True),
        ("emqx", 200, {"result": "deny"}, True),
        ("mosquitto-go-auth", 401, b"", False),
        ("mosquitto-go-auth", 403, b"no", False),
        ("mosquitto-go-auth", 403, {"Ok": False}, True),
        ("mosquitto-go-auth", 200, {"ok": False}, True),
    ],
)
async def test_a_bare_status_is_no_verdict_on_what_a_client_has(
    contract: str, status: int, body: Any, decided: bool, service: Any, start: Start
) -> None:
    plugin = await start(contract=contract, authorize={"url": service.url})
    for action in (Action.PUBLISH, Action.SUBSCRIBE, Action.WILL):
        service.answer((status, body))
        verdict = await ask(plugin, action, "a/b")
        assert verdict.code is ReasonCode.NOT_AUTHORIZED
        assert verdict.decided is (decided or action is Action.PUBLISH)


@pytest.mark.parametrize("contract", ["hookmq", "emqx"])
@pytest.mark.parametrize("body", [b"", {"result": "deny"}, {"result": "allow"}])
async def test_a_broker_that_the_service_does_not_know_decides_nothing(
    contract: str, body: Any, service: Any, start: Start
) -> None:
    plugin = await start(contract=contract, authorize={"url": service.url})
    for action in (Action.PUBLISH, Action.SUBSCRIBE, Action.WILL):
        service.answer((401, body))
        with pytest.raises(Undecided, match="401"):
            await ask(plugin, action, "a/b")
    assert plugin.undecided == 3


UNUSABLE = [
    (200, b"", "not JSON"),
    (200, b"{", "not JSON"),
    (200, b"[" * 60_000, "not JSON"),
    (200, b'{"result": NaN}', "not JSON"),
    (200, b"[]", "not a JSON object"),
    (200, b"true", "not a JSON object"),
    (200, {}, "result is 'None'"),
    (200, {"result": "Allow"}, "result is 'Allow'"),
    (200, {"result": True}, "result is 'True'"),
    (200, {"result": ["allow"]}, "result is"),
    (201, {"result": "yes"}, "result is 'yes'"),
    (302, {"result": "allow"}, "status 302"),
    (404, {"result": "allow"}, "status 404"),
    (500, {"result": "allow"}, "status 500"),
    (200, b'{"result":"allow"' + b" " * 70_000 + b"}", "more than 65536 bytes"),
]


@pytest.mark.parametrize(("status", "body", "words"), UNUSABLE)
@pytest.mark.parametrize("contract", ["hookmq", "emqx"])
async def test_an_answer_that_is_not_understood_decides_nothing(
    contract: str, status: int, body: Any, words: str, service: Any, start: Start
) -> None:
    service.answer((status, body))
    plugin = await start(
        contract=contract,
        retries=0,
        authenticate={"url": service.url},
        authorize={"url": service.url + "/a"},
    )
    with pytest.raises(Undecided, match=words) as raised:
        await plugin.on_connect(client(), connect())
    assert "s3cr3t" not in str(raised.value)
    with pytest.raises(Undecided, match=words):
        await ask(plugin, Action.PUBLISH, "t")
    assert plugin.undecided == 2
    service.answer((200, {"result": "allow"}))
    assert await plugin.on_connect(client(), connect()) == Accept(
        "ann", {}
    )  # and it was not remembered


@pytest.mark.parametrize(
    ("contract", "extra", "words"),
    [
        ("hookmq", {"expire_at": 1}, "unknown key 'expire_at'"),
        ("hookmq", {"identity": 5}, "identity is a int"),
        ("hookmq", {"claims": []}, "claims is a list"),
        ("hookmq", {"superuser": "true"}, "superuser is a str"),
        ("hookmq", {"superuser": 1}, "superuser is a int"),
        ("hookmq", {"expires_at": "tomorrow"}, "expires_at is a str"),
        ("hookmq", {"expires_at": -1}, "seconds since 1970"),
        ("hookmq", {"cache": -1}, "cache is -1"),
        ("hookmq", {"limits": {"queue": 1}}, "limits"),
        ("hookmq", {"limits": {"queue_messages": -1}}, "limits"),
        ("hookmq", {"permissions": {"publsh": ["a"]}}, "unknown key 'publsh'"),
        ("hookmq", {"permissions": {"publish": ["a/#/b"]}}, "permissions"),
        ("hookmq", {"permissions": 5}, "permissions"),
        ("hookmq", {"permissions": {"publish": ["a"] * 1001}}, "more than 1000 rules"),
        ("emqx", {"is_superuser": 1}, "is_superuser is a int"),
        (
            "emqx",
            {"acl": [{"permission": "allow", "action": "all", "topic": "eq a/#"}]},
            "eq is not supported",
        ),
        (
            "emqx",
            {"acl": [{"permission": "allow", "action": "all", "topic": "a", "qos": [1, 2]}]},
            "qos",
        ),
        (
            "emqx",
            {"acl": [{"permission": "allow", "action": "all", "topic": "#", "ipaddr": "10.0.0.1"}]},
            "unknown key 'ipaddr'",
        ),
        ("emqx", {"acl": ["x"]}, "not an object"),
        ("emqx", {"acl": {}}, "acl is a dict"),
        ("emqx", {"expire_at": "x"}, "expire_at is a str"),
    ],
)
async def test_a_yes_that_says_something_strange_is_no_yes(
    contract: str, extra: dict[str, Any], words: str, service: Any, start: Start
) -> None:
    service.answer((200, {"result": "allow", **extra}))
    plugin = await start(contract=contract, authenticate={"url": service.url})
    with pytest.raises(Undecided, match=words):
        await plugin.on_connect(client(), connect())


@given(
    st.binary(max_size=60)
    | st.sampled_from([b'{"result":"allow","cache":1e999}', b'{"ok":1}', b'"ok"'])
)
def test_no_body_breaks_a_reader(body: bytes) -> None:
    from hookmq_auth_http.answers import CONTRACTS, Unusable

    for contract in CONTRACTS.values():
        for read in (contract.read_authenticate, contract.read_authorize):
            try:
                answer = read(200, body)
            except Unusable:
                continue
            if isinstance(answer.verdict, Accept | Allow):
                assert body.strip().lower() in (b"", b"ok") or b"allow" in body or b"true" in body


# permissions that came with the yes ------------------------------------------------------------------------------


async def test_permissions_decide_without_asking(service: Any, start: Start) -> None:
    permissions = {"publish": ["d/%c/#", {"topic": "low", "qos": 1}], "subscribe": ["s/#", {"topic": "q", "qos": 1}],
                   "deny": ["s/secret"]}  # fmt: skip
    service.answer((200, {"result": "allow", "permissions": permissions}))
    plugin = await start(
        authenticate={"url": service.url}, authorize={"url": service.url + "/never"}
    )
    who = client(client_id="c1")
    accepted = await plugin.on_connect(who, connect())
    assert isinstance(accepted, Accept)
    who.claims = accepted.claims or {}
    assert await ask(plugin, Action.PUBLISH, "d/c1/x", who) == Allow()
    assert await ask(plugin, Action.WILL, "d/c1/x", who) == Allow()
    assert isinstance(await ask(plugin, Action.PUBLISH, "d/c2/x", who), Deny)
    assert await ask(plugin, Action.PUBLISH, "low", who) == Allow()
    assert await ask(plugin, Action.SUBSCRIBE, "s/a/#", who) == Allow()
    assert await ask(plugin, Action.SUBSCRIBE, "q", who) == Allow(max_qos=1)
    denied = await ask(plugin, Action.SUBSCRIBE, "s/#", who)
    assert denied == Deny(reason="denied by permissions.deny[0]")
    assert [path for _, path, *_ in service.requests] == ["/"]


@pytest.mark.parametrize("claims", [{}, {"groups": ["x"], "hookmq:http": {"superuser": True}}])
async def test_permissions_hold_whoever_accepted_before(
    claims: Any, service: Any, start: Start
) -> None:
    """The permissions from the service apply even if another plugin accepted the client first,
    because they are not stored as a claim.
    """
    service.answer((200, {"result": "allow", "permissions": {"publish": ["mine"]}}))
    plugin = await start(authenticate={"url": service.url})
    recorder = HookRecorder("on_connect", id="first")
    recorder.answer("on_connect", Accept("ann", claims))
    accepted = await plugin.on_connect(client(), connect())
    later = HookRecorder("on_connect", id="http")
    later.answer("on_connect", accepted)
    with Harness([recorder, later]) as harness:
        harness.connect("c", username="ann")
        who = harness.broker.sessions["c"].client
    assert await ask(plugin, Action.PUBLISH, "mine", who) == Allow()
    assert isinstance(await ask(plugin, Action.PUBLISH, "other", who), Deny)


async def test_a_superuser_may_do_everything(service: Any, start: Start) -> None:
    service.answer((200, b"ok"))
    plugin = await start(
        contract="mosquitto-go-auth",
        authenticate={"url": service.url + "/user"},
        superuser={"url": service.url + "/super"},
        authorize={"url": service.url + "/acl"},
    )
    who = client()
    accepted = await plugin.on_connect(who, connect())
    assert isinstance(accepted, Accept)
    who.claims = accepted.claims or {}
    assert await ask(plugin, Action.PUBLISH, "any", who) == Allow()
    assert [(path, sent) for _, path, sent, _ in service.requests] == [
        ("/user", {"username": "ann", "password": SECRET, "clientid": "c/1"}),
        ("/super", {"username": "ann"}),
    ]
    service.answer((200, b"ok"), (403, b""))
    accepted = await plugin.on_connect(client(username="bob"), connect())
    assert accepted == Accept("bob", {})


async def test_a_hook_without_a_configured_url_abstains(service: Any, start: Start) -> None:
    plugin = await start(authenticate={"url": service.url})
    assert await ask(plugin, Action.PUBLISH, "t") is None
    plugin = await start(authorize={"url": service.url})
    assert await plugin.on_connect(client(), connect()) is None
    assert service.requests == []


@pytest.mark.parametrize(
    "claims",
    [
        {"hookmq:http": True},
        {"hookmq:http": {"superuser": "yes"}},
        {"hookmq:http": {"superuser": 1}},
        {"http": {"superuser": True}},
    ],
)
async def test_only_our_own_word_makes_a_superuser(claims: Any, service: Any, start: Start) -> None:
    service.answer((403, b""))
    plugin = await start(authorize={"url": service.url})
    assert isinstance(await ask(plugin, Action.PUBLISH, "t", client(claims=claims)), Deny)


# failure ---------------------------------------------------------------------------------------------------------


async def test_a_failed_request_is_repeated_as_often_as_configured(
    service: Any, start: Start
) -> None:
    service.answer((503, b""), (200, {"result": "allow"}))
    plugin = await start(authenticate={"url": service.url}, retries=1)
    assert isinstance(await plugin.on_connect(client(), connect()), Accept)
    service.requests.clear()
    service.answer((503, b""))
    with pytest.raises(Undecided, match="status 503"):
        await plugin.on_connect(client(username="bob"), connect())
    assert len(service.requests) == 2


async def test_a_no_is_not_tried_again(service: Any, start: Start) -> None:
    service.answer((403, b""))
    plugin = await start(authenticate={"url": service.url}, retries=3)
    assert await plugin.on_connect(client(), connect()) == REFUSED
    assert len(service.requests) == 1


async def test_nobody_there(service: Any, start: Start) -> None:
    plugin = await start(authenticate={"url": "http://127.0.0.1:1/x?p=${password}"}, retries=0)
    with pytest.raises(Undecided, match=r"^http://127\.0\.0\.1:1/x: connection refused$") as raised:
        await plugin.on_connect(client(), connect())
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_an_answer_that_breaks_off(service: Any, start: Start) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"result": "allow"}')
        assert request.transport is not None
        request.transport.close()
        return response

    service.answer(cut)
    plugin = await start(authenticate={"url": service.url}, retries=0)
    with pytest.raises(Undecided, match="connection closed: the answer is incomplete"):
        await plugin.on_connect(client(), connect())


async def test_no_answer_in_time(service: Any, start: Start) -> None:
    service.answer(service.never)
    plugin = await start(authenticate={"url": service.url}, retries=0, timeout=0.05)
    with pytest.raises(Undecided, match=r"no answer within 0\.05 s"):
        await plugin.on_connect(client(), connect())
    assert plugin.timeouts == {"on_connect": 1.05, "authorize": 1.05}


async def test_a_redirect_is_not_followed(service: Any, start: Start) -> None:
    async def away(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(service.url + "/elsewhere")

    service.answer(away)
    plugin = await start(authenticate={"url": service.url})
    with pytest.raises(Undecided, match="status 302"):
        await plugin.on_connect(client(), connect())
    assert len(service.requests) == 1


async def test_one_client_that_the_service_stumbles_over_shuts_nobody_out(
    service: Any, start: Start
) -> None:
    """If the service fails for one client, other clients are not blocked. A 500 response shows that the service is
    reachable, so it must not open the circuit breaker.
    """
    service.answer((500, b""))
    plugin = await start(authenticate={"url": service.url}, breaker_failures=2)
    for _ in range(9):
        with pytest.raises(Undecided, match="status 500"):
            await plugin.on_connect(client(username="odd"), connect())
    service.answer((200, {"result": "allow"}))
    assert await plugin.on_connect(client(), connect()) == Accept("ann", {})


async def test_a_service_that_is_down_is_left_alone_and_tried_by_one(
    service: Any, start: Start
) -> None:
    service.answer((503, b""))
    plugin = await start(
        authenticate={"url": service.url}, retries=0, breaker_failures=3, breaker_pause=10
    )
    clock = plugin.clock  # type: ignore[attr-defined]

    async def connects(name: str) -> str:
        try:
            await plugin.on_connect(client(username=name), connect())
        except Undecided as error:
            return str(error).rpartition(": ")[2]
        return "in"

    left = "the service failed too often and is not asked for a while"
    assert [await connects(str(n)) for n in range(5)] == ["status 503"] * 3 + [left] * 2
    clock[0] += 9.9
    assert await connects("x") == left
    clock[0] += 0.2
    service.answer(service.never)
    service.asked.clear()
    probe = asyncio.create_task(connects("probe"))
    await service.asked.wait()
    assert await connects("y") == left  # one at a time
    service.released.set()
    assert await probe == "in"
    service.answer((204, b""))
    assert await connects("z") == "in"


async def test_a_failed_probe_waits_twice_as_long(service: Any, start: Start) -> None:
    service.answer((503, b""))
    plugin = await start(
        authenticate={"url": service.url}, retries=0, breaker_failures=1, breaker_pause=10
    )
    clock = plugin.clock  # type: ignore[attr-defined]
    asked = []
    for seconds in (0, 10, 19.9, 0.2, 39.9, 0.2, 80.1, 80.1, 80.1):
        clock[0] += seconds
        before = len(service.requests)
        with pytest.raises(Undecided):
            await plugin.on_connect(client(), connect())
        asked.append(len(service.requests) - before)
    assert asked == [1, 1, 0, 1, 0, 1, 1, 1, 1]


async def test_a_client_that_leaves_ends_its_request(service: Any, start: Start) -> None:
    service.answer(service.never)
    plugin = await start(authenticate={"url": service.url}, breaker_failures=1)
    task = asyncio.create_task(plugin.on_connect(client(), connect()))
    await service.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(service.cancelled.wait(), 10)
    service.answer((204, b""))
    assert isinstance(
        await plugin.on_connect(client(), connect()), Accept
    )  # and nothing was held against it


async def test_requests_at_a_time_and_waiting_are_bounded(service: Any, start: Start) -> None:
    service.answer(service.never)
    plugin = await start(
        authenticate={"url": service.url}, max_parallel=2, max_waiting=3, timeout=30
    )
    tasks = [
        asyncio.create_task(plugin.on_connect(client(username=str(n)), connect())) for n in range(6)
    ]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = done
    assert "3 requests are waiting already" in str(refused.exception())
    while len(service.requests) < 2:
        await asyncio.wait_for(service.asked.wait(), 10)
        service.asked.clear()
    assert len(service.requests) == 2
    service.released.set()
    for task in set(tasks) - done:
        assert isinstance(await task, Accept)


# memory ----------------------------------------------------------------------------------------------------------


async def test_answers_are_remembered_for_a_time(service: Any, start: Start) -> None:
    plugin = await start(authenticate={"url": service.url}, cache=10, negative_cache=2)
    clock = plugin.clock  # type: ignore[attr-defined]

    async def asked(seconds: float, who: ClientInfo, password: bytes = b"a") -> int:
        clock[0] += seconds
        before = len(service.requests)
        await plugin.on_connect(who, connect(password))
        return len(service.requests) - before

    ann, bob = client(), client(username="bob")
    assert [await asked(0, ann), await asked(9.9, ann), await asked(0.2, ann)] == [1, 0, 1]
    assert await asked(0, ann, b"b") == 1  # another password is another question
    service.answer((403, b""))
    assert [await asked(0, bob), await asked(1.9, bob), await asked(0.2, bob)] == [1, 0, 1]
    service.answer((200, {"result": "deny", "cache": 100}))
    assert [await asked(5, bob), await asked(99, bob), await asked(2, bob)] == [1, 0, 1]
    service.answer((200, {"result": "allow", "cache": 0}))
    assert [await asked(200, ann), await asked(0, ann)] == [1, 1]
    plugin.on_reload(None, None)  # type: ignore[arg-type]
    assert await asked(0, bob) == 1


async def test_the_cache_is_bounded_and_contains_no_password(service: Any, start: Start) -> None:
    plugin = await start(authenticate={"url": service.url}, cache_size=10)
    for number in range(30):
        await plugin.on_connect(client(username=str(number)), connect(b"hunter2"))
    assert len(plugin.cache) == 10
    assert "hunter2" not in repr(vars(plugin.cache)) + repr(vars(plugin))


def test_credentials_for_the_service_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
version: 1
listeners: [{name: tcp, bind: "127.0.0.1:1883"}]
plugins:
  - use: auth_http
    config:
      authenticate:
        url: http://127.0.0.1/
        headers: {Authorization: Bearer hunter2, X-Api-Key: hunter2, X-Auth-Token: hunter2, Cookie: a=hunter2}
        body: {api_key: hunter2}
"""
    config = tmp_path / "hookmq.yaml"
    config.write_text(text)
    assert run_command(["config", "show", "-c", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "X-Auth-Token" in shown
    assert "hunter2" not in shown
    assert "hunter2" not in repr(load_plugins(text, {})[0].plugin.config)


# configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "expected authenticate, authorize or both"),
        ({"authenticate": {"url": "http://10.1.2.3/x"}}, "sends passwords unencrypted"),
        ({"authenticate": {"url": "ftp://localhost/"}}, "expected a URL"),
        ({"authenticate": {"url": "localhost:80"}}, "expected a URL"),
        ({"authenticate": {"url": "http://localhost:99999/"}}, "authenticate.url"),
        ({"authenticate": {"url": "http://${clientid}.localhost/"}}, "not in the host"),
        ({"authenticate": {"url": "http://me:pw@localhost/"}}, "not allowed in a URL; use headers"),
        ({"authenticate": {"url": "http://localhost/${user}"}}, r"unknown placeholder \$\{user\}"),
        (
            {"authenticate": {"url": "http://localhost/", "body": {"t": "${topic}"}}},
            r"unknown placeholder \$\{topic\}",
        ),
        (
            {"authorize": {"url": "http://localhost/", "headers": {"p": "${password}"}}},
            r"unknown placeholder \$\{password\}",
        ),
        (
            {
                "authenticate": {"url": "http://localhost/"},
                "superuser": {"url": "http://localhost/"},
            },
            "not part of the contract",
        ),
        ({"authenticate": {"url": "http://localhost/"}, "tls": {"key_file": "k"}}, "tls.key_file"),
        ({"authenticate": {"url": "http://localhost/"}, "retries": 11}, "retries"),
        ({"authenticate": {"url": "http://localhost/", "method": "delete"}}, "method"),
        ({"authenticate": {"url": "http://localhost/"}, "timout": 1}, "timout"),
    ],
)
async def test_configurations_that_cannot_be(
    config: dict[str, Any], words: str, start: Start
) -> None:
    with pytest.raises(Exception, match=words):
        await start(**config)


async def test_http_to_others_must_be_wanted(start: Start) -> None:
    plugin = await start(authenticate={"url": "http://10.1.2.3/x"}, plain_http=True)
    assert plugin.config.plain_http


async def test_files_of_tls_are_read_at_start(start: Start, tmp_path: Any) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    os.mkfifo(tmp_path / "pipe.pem")
    reasons = {
        "missing.pem": r"/missing\.pem .*No such file",
        "bad.pem": "",
        "pipe.pem": "not a regular file",
    }
    for name, why in reasons.items():
        with pytest.raises(PluginError, match=f"config.tls: .*{why}"):
            await start(
                authenticate={"url": "https://localhost/"}, tls={"ca_file": str(tmp_path / name)}
            )


async def test_https_is_verified(start: Start, tmp_path: Any) -> None:
    import trustme

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    application = web.Application()

    async def yes(request: web.Request) -> web.Response:
        return web.Response(status=204)

    application.router.add_post("/", yes)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://localhost:{runner.addresses[0][1]}/"
    trusting = await start(authenticate={"url": url}, tls={"ca_file": str(tmp_path / "ca.pem")})
    assert isinstance(await trusting.on_connect(client(), connect()), Accept)
    strict = await start(authenticate={"url": url}, retries=0)
    with pytest.raises(Undecided, match="certificate not trusted"):
        await strict.on_connect(client(), connect())
    await runner.cleanup()
