"""Test reload reports as the log and plugins receive them."""

from hookmq.model.reload_report import ReloadReport, SettingChange

CHANGE = SettingChange("broker.max_qos", "2", "1")


def test_a_change_as_text() -> None:
    assert str(CHANGE) == "broker.max_qos: 2 -> 1"


def test_a_report_is_true_if_anything_changed() -> None:
    assert not ReloadReport()
    assert ReloadReport(applied=(CHANGE,))
    assert ReloadReport(restart=(CHANGE,))


def test_the_fields_of_a_log_event() -> None:
    assert ReloadReport((CHANGE,), (CHANGE, CHANGE)).fields() == {
        "applied": ["broker.max_qos: 2 -> 1"],
        "needs_restart": ["broker.max_qos: 2 -> 1"] * 2,
    }
