"""Test the index by client and topic. It must make the same decisions as reading the file from top to bottom."""

import gc
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from hookmq.plugin import Action, Certificate, ClientInfo, Peer, Scope
from hookmq_acl_file.index import EAGER, Entry, Index
from hookmq_acl_file.who import EVERYBODY, Who
from hookmq_toolkit.rules import Rule, Rules, rule_values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

unhurried = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])

GROUPS = {"g": ["u", "v"], "h": ["w"]}
NETWORKS = [
    ip_network(text) for text in ("10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0", "::/0", "2001:db8::/32")
]


def some(*values: str) -> st.SearchStrategy[frozenset[str] | None]:
    return st.none() | st.none() | st.frozensets(st.sampled_from(values), min_size=1)


def pairs(**values: list[str]) -> st.SearchStrategy[tuple[tuple[str, frozenset[str]], ...]]:
    made = st.dictionaries(
        st.sampled_from(sorted(values)),
        st.frozensets(st.sampled_from(["a", "true", "7"]), min_size=1),
    )
    return st.just(()) | made.map(lambda found: tuple(sorted(found.items())))


WHO = st.just(EVERYBODY) | st.builds(
    Who,
    some("u", "v", "w"),
    st.sampled_from([None, None, None, True, False]),
    some("c", "d"),
    some("g", "h"),
    pairs(role=["a"], **{"o.p": ["a"]}),
    pairs(common_name=["a"], san=["a"]),
    st.none() | st.none() | st.lists(st.sampled_from(NETWORKS), min_size=1).map(tuple),
    some("l", "m"),
)
FILTERS = st.sampled_from(["a", "a/b", "a/+", "a/#", "#", "+", "%u/#", "%c", "${role}/b", "$x/#"])
LISTED = st.lists(
    st.tuples(
        st.builds(
            Rule,
            st.booleans(),
            FILTERS,
            st.frozensets(st.sampled_from(list(Action)), min_size=1),
            st.sampled_from([None, None, 0, 1]),
            st.sampled_from([None, None, True]),
        ),
        WHO,
    ),
    max_size=10,
)
CLIENTS = st.builds(
    ClientInfo,
    st.sampled_from(["c", "d", "a/b"]),
    st.just(5),
    st.sampled_from([None, "u", "v", "x", "a"]),
    st.builds(
        Peer,
        st.sampled_from(
            [
                "10.1.2.3",
                "10.9.9.9",
                "192.0.2.1",
                "::ffff:10.1.0.1",
                "2001:db8::1%eth0",
                "",
                "/run/x.sock",
            ]
        ),
        certificate=st.none()
        | st.builds(
            Certificate, st.sampled_from(["", "a", "b"]), sans=st.sampled_from([(), ("7", "a")])
        ),
    ),
    st.builds(Scope, st.sampled_from(["l", "m", "n"])),
    identity=st.sampled_from([None, None, "u", "w"]),
    claims=st.sampled_from(
        [
            {},
            {"role": "a"},
            {"role": ["a", "x"]},
            {"role": True},
            {"role": 7, "o": {"p": ["7", 1.5]}},
            {"o.p": None},
            {"groups": ["g"]},
        ]
    ),
)


def meant(who: Who, client: ClientInfo) -> bool:
    """Return whether `who` matches the client. Checks each condition without the index."""
    user = client.username if client.identity is None else client.identity
    if who.users is not None and user not in who.users:
        return False
    if who.anonymous is not None and (user is None) is not who.anonymous:
        return False
    if who.clients is not None and client.client_id not in who.clients:
        return False
    if who.groups is not None and not any(
        user in GROUPS[group] or group in client.claims.get("groups", ()) for group in who.groups
    ):
        return False
    for name, values in who.claims:
        found: Any = client.claims.get(name)
        if found is None and name == "o.p":
            inner = client.claims.get("o")
            found = inner.get("p") if isinstance(inner, Mapping) else None
        listed = found if isinstance(found, list) else [found]
        texts = {
            str(x).lower() if isinstance(x, bool) else str(x)
            for x in listed
            if isinstance(x, str | int)
        }
        if not texts & values:
            return False
    certificate = client.peer.certificate or Certificate()
    for name, values in who.certificate:
        if name == "common_name" and certificate.common_name not in values:
            return False
        if name == "san" and not set(certificate.sans) & values:
            return False
    if who.networks is not None:
        try:
            address = ip_address(client.peer.host.split("%")[0].replace("::ffff:", ""))
        except ValueError:
            return False
        if not any(
            address in network for network in who.networks if network.version == address.version
        ):
            return False
    return who.listeners is None or client.listener in who.listeners


def brute(
    listed: list[tuple[Rule, Who]],
    client: ClientInfo,
    action: Action,
    topic: str,
    qos: int,
    retain: bool,
) -> Rule | None:
    """Return the first rule that applies, compiling each rule separately. The toolkit's own tests cover individual
    rules.
    """
    for rule, who in listed:
        if meant(who, client):
            alone = Rules([rule])
            found = alone.decide(action, topic, qos, retain, rule_values(client, alone.variables))
            if found is not None:
                return found
    return None


def numbered(listed: list[tuple[Rule, Who]]) -> list[tuple[Rule, Who]]:
    made = []
    for order, (rule, who) in enumerate(listed):
        made.append(
            (
                Rule(
                    rule.allow,
                    rule.filter,
                    rule.actions,
                    rule.qos,
                    rule.retain,
                    order,
                    f"f:{order}",
                ),
                who,
            )
        )
    return made


@unhurried
@given(
    LISTED,
    CLIENTS,
    st.sampled_from(list(Action)),
    st.sampled_from(["a", "a/b", "u/x", "c", "b", "$x/y"]),
    st.sampled_from(["a", "a/+", "a/#", "#", "+", "u/#", "c", "$x/#"]),
    st.integers(0, 2),
    st.booleans(),
)
def test_decided_as_brute_force_decides(
    drawn: list[tuple[Rule, Who]],
    client: ClientInfo,
    action: Action,
    topic: str,
    filter: str,
    qos: int,
    retain: bool,
) -> None:
    listed = numbered(drawn)
    index = Index([Entry(*one) for one in listed], GROUPS)
    asked = filter if action is Action.SUBSCRIBE else topic
    found = index.decide(index.choose(client), action, asked, qos, retain)
    assert found == brute(listed, client, action, asked, qos, retain)


@unhurried
@given(LISTED, LISTED, CLIENTS, st.sampled_from(["a", "a/b", "u/x"]))
def test_after_a_reload_nothing_is_left_of_before(
    first: list[tuple[Rule, Who]], second: list[tuple[Rule, Who]], client: ClientInfo, topic: str
) -> None:
    for drawn in (first, second, first):
        listed = numbered(drawn)
        index = Index([Entry(*one) for one in listed], GROUPS)
        found = index.decide(index.choose(client), Action.PUBLISH, topic, 0, False)
        assert found == brute(listed, client, Action.PUBLISH, topic, 0, False)


def test_a_file_for_many_users_takes_the_room_of_those_who_are_there() -> None:
    everything = frozenset(Action)
    entries = [
        Entry(
            Rule(True, f"d/{n}/#", everything, order=n, source="f"), Who(users=frozenset({f"u{n}"}))
        )
        for n in range(20_000)
    ]
    entries += [
        Entry(Rule(True, f"all/{n}", everything, order=20_000 + n, source="f"), EVERYBODY)
        for n in range(EAGER + 1)
    ]
    gc.collect()  # what earlier tests left would otherwise be collected in between
    before = sum(isinstance(one, Rules) for one in gc.get_objects())
    index = Index(entries)
    client = ClientInfo("c", 5, "u77", Peer(""), Scope())
    chosen = index.choose(client)
    after = sum(isinstance(one, Rules) for one in gc.get_objects())
    assert after - before == 2  # everybody's and this one's
    assert index.decide(chosen, Action.PUBLISH, "d/77/x", 0, False) is entries[77].rule
    assert index.decide(chosen, Action.PUBLISH, "d/78/x", 0, False) is None
    assert index.decide(chosen, Action.SUBSCRIBE, "all/3", 0, False) is entries[20_003].rule
