"""The last phase of a run with journals: a broker starts with a different store.

The journals must keep all entries, start a new epoch, and from then on drop only what the new store did not commit.
"""

from typing import Final

from simulator.journal import Entry
from simulator.steps import Steps

TRIAL: Final = ("t/0", "s/0", "r/0", "t/1/x", "e/0")
"""Topics of the new broker's messages. Every journal wants some of them, and no client subscribes to them."""


class Epochs(Steps):
    """Runs this phase once everything else is done and all clients have left. The steps run one after another, with
    pauses between them.
    """

    before: dict[str, list[Entry]]
    """The entries that each journal had before the broker started with the new store."""

    def _begin_anew(self) -> None:
        self.before = {name: list(disk.kept) for name, disk in self.journals.disks.items()}
        self._restart_at_once(other=True)
        self._publish_to_journals()

    def _go_down(self) -> None:
        """Let the new store finish its commits, then kill the process during the next commit."""
        for name, disk in self.journals.disks.items():
            self._compare(name, disk.kept)
            wanted = sum(map(disk.wants, TRIAL))
            if len(disk.kept) != len(self.before[name]) + wanted:
                self.complain("11 journal", f"{name} did not get all that it wants")
            self.before[name] = list(disk.kept)
        self._publish_to_journals()
        self.clock.after(self.journals.delay(), self._restart_at_once)

    def _check_epochs(self) -> None:
        for name, disk in self.journals.disks.items():
            self._compare(name, disk.kept)
        self.journals.check_settled()

    def _restart_at_once(self, other: bool = False) -> None:
        """Kill the process and start another with the same disk or, if `other`, with an empty one."""
        self._kill()
        if other and self.disk is not None:
            self.disk = self._make_disk("another")
        if other or self.disk is None:
            self.keeper.begin_anew()
        self._start()

    def _publish_to_journals(self) -> None:
        handle = self._handle()
        assert handle is not None
        for topic in TRIAL:
            sent, payload = self.ledger.write(-1, topic, 1, origin="plugin")
            self.ledger.sending(sent, self.clock.now)
            handle.publish(topic, payload, 1)

    def _compare(self, name: str, kept: list[Entry]) -> None:
        before = self.before[name]
        if kept[: len(before)] != before:
            self.complain("11 journal", f"{name} lost what was of an older store, or committed")
