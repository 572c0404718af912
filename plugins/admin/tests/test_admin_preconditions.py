"""Test what happens when two administrators make changes at once. A change based on an outdated entity tag is
refused.
"""

import asyncio
from collections.abc import Iterator

import pytest
from admin_site import CHANGE, Answer, Site
from hookmq.plugin import ReloadReport
from hookmq_admin.errors import ApiError
from hookmq_admin.preconditions import check, tag_of

TAG = '"0123"'


def create(site: Site, name: str, tag: str | None = None) -> Answer:
    headers = {} if tag is None else {"If-Match": tag}
    return site.ask("POST", "/tokens", json={"name": name, "role": "viewer"}, headers=headers)


def test_the_second_of_two_changes_to_tokens_is_refused(site: Site) -> None:
    tag = site.ask("GET", "/tokens").headers["ETag"]
    made = create(site, "mine", tag)
    assert made.status == 200
    assert "ETag" not in made.headers  # the client could not know which state it describes
    late = create(site, "yours", tag)
    assert (late.status, late.json["title"]) == (412, "Precondition Failed")
    path = f"/tokens/{made.json['id']}"
    assert site.ask("DELETE", path, headers={"If-Match": tag}).status == 412
    assert site.audit()[0]["status"] == 412
    names = [one["name"] for one in site.ask("GET", "/tokens").json["items"]]
    assert "mine" in names
    assert "yours" not in names
    now = site.ask("GET", "/tokens").headers["ETag"]
    assert site.ask("DELETE", path, headers={"If-Match": now}).status == 200
    assert site.ask("GET", "/tokens").headers["ETag"] == tag  # the same tokens as before


def test_changes_without_a_tag_or_with_any_are_made(site: Site) -> None:
    assert create(site, "no tag").status == 200
    assert create(site, "any", "*").status == 200
    assert create(site, "bad", "none").status == 400


@pytest.fixture
def configuration(site: Site) -> Iterator[None]:
    """Make every reload change the configuration."""
    before = site.broker.configuration
    yield
    site.broker.configuration = before
    site.reloads.clear()


@pytest.mark.usefixtures("configuration")
def test_of_two_reloads_at_once_only_one_has_the_right_tag(site: Site) -> None:
    tag = site.ask("GET", "/configuration").headers["ETag"]
    site.reloads += [ReloadReport(applied=(CHANGE,)), ReloadReport(applied=(CHANGE,))]
    versions = iter(range(2, 100))

    class Changing(list[ReloadReport | Exception]):
        def pop(self, index: object = -1) -> ReloadReport | Exception:
            text = f"version: {next(versions)}\n"
            site.broker.configuration = lambda: text
            return super().pop()

    site.reloads = Changing(site.reloads)

    async def reload() -> int:
        headers = {"Authorization": f"Bearer {site.tokens['admin']}", "If-Match": tag}
        async with site.http.post(
            f"{site.url}/api/v1/configuration/reload", headers=headers
        ) as answer:
            return answer.status

    async def both() -> list[int]:
        return sorted(await asyncio.gather(reload(), reload()))

    assert site.run(both()) == [200, 412]
    assert site.ask("GET", "/configuration").headers["ETag"] != tag


@pytest.mark.parametrize(
    "given", [(), ("*",), (TAG,), (f'"x", {TAG}',), ('"x"', TAG), (f'{TAG},"a,b"',)]
)
def test_matching_tags(given: tuple[str, ...]) -> None:
    check(given, TAG)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ('"x"', 412),
        (f"W/{TAG}", 412),  # a weak tag never matches
        ('""', 412),
        ("0123", 400),
        ('"0123', 400),
        (f"{TAG} {TAG}", 400),
        ("*,*", 400),
        ('"a" ' * 5000, 400),
    ],
)
def test_other_tags(given: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        check([given], TAG)
    assert caught.value.status == status


def test_a_tag_depends_on_the_limits_of_the_parts() -> None:
    assert tag_of(["ab", "c"]) != tag_of(["a", "bc"])
    assert tag_of(["\ud800"]) == tag_of(["\ud800"])
