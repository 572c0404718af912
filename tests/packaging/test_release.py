"""A release is refused unless every version agrees and the changelog describes it."""

import re

import pytest
from release import ROOT, problems, sections, versions

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
GOOD = "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2027-01-31)\n\n### Added\n\n- One.\n\n## 0.1.0 (2026-12-01)\n\nFirst.\n"


def test_every_distribution_that_is_published_has_one_version() -> None:
    found = versions()
    assert {
        "hookmq",
        "hookmq-storage",
        "hookmq-queues-client",
        "hookmq-webhook-receiver",
        "pyspark-mqtt",
        "hookmq-pipelines",
    } <= found.keys()
    assert not any(name.startswith("hookmq-example") for name in found)
    assert len(set(found.values())) == 1


def test_sections_are_cut_by_version() -> None:
    assert sections(GOOD) == {"Unreleased": "", "0.2.0": "### Added\n\n- One.", "0.1.0": "First."}


def test_two_sections_of_one_version_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two sections '0\.1\.0'"):
        sections(GOOD + "\n## 0.1.0 (2026-12-02)\n\nAgain.\n")


@pytest.mark.parametrize(
    ("tag", "changelog", "found"),
    [
        ("v0.2.0", GOOD, []),
        ("0.2.0", GOOD, ["'0.2.0' is not a version such as v0.1.0"]),
        ("v0.2.0", "# Changelog\n\n## Unreleased\n\n- One.\n", ["the changelog has no heading '## 0.2.0 (YYYY-MM-DD)'"]),
        ("v0.2.0", "# Changelog\n\n## 0.2.0 (2027-01-31)\n", ["the changelog says nothing about 0.2.0"]),
    ],
)  # fmt: skip
def test_a_tag_with_other_versions_is_not_released(
    tag: str, changelog: str, found: list[str]
) -> None:
    assert problems(tag, {"hookmq": "0.2.0"}, changelog) == found


def test_a_distribution_of_another_version_is_named() -> None:
    assert problems("v0.2.0", {"a": "0.2.0", "b": "0.1.0"}, GOOD) == [
        "b has version 0.1.0, not 0.2.0"
    ]


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    headings = re.findall(r"^## (.+)$", CHANGELOG, re.M)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", one) for one in headings[1:])
    assert headings[1:] == sorted(
        headings[1:], key=lambda one: [int(n) for n in re.findall(r"\d+", one)], reverse=True
    )
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for name, text in sections(CHANGELOG).items():
        found = re.findall(r"^### (.+)$", text, re.M)
        assert set(found) <= kinds, name
        assert len(set(found)) == len(found), name
