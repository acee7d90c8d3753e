"""What starts after what in a lab."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from fabtest.runtime import boot

VALID, INVALID = " 172.16.0.1 valid [IGP metric 0], #paths 0", " 172.16.0.1 invalid, #paths 0, peer 172.16.0.1"


class Bgpd:
    """Answers that a bgpd gives one after the other; the last for ever."""

    def __init__(self, *answers: tuple[str, str]) -> None:
        self.answers, self.asked = answers, 0

    def now(self) -> tuple[str, str]:
        return self.answers[min(self.asked, len(self.answers) - 1)]

    def json(self, *_: Any) -> Any:
        return {"ipv4Unicast": {"peers": {"172.16.0.1": {"state": self.now()[0]}}}}

    def text(self, *_: Any) -> str:
        return f"Current BGP nexthop cache:\n{self.now()[1]}\n"


@pytest.mark.parametrize(
    ("answers", "looks"),
    [
        ([("Active", VALID)], 1),  # called in vain
        ([("Established", VALID)], 1),
        ([("Idle", "")], 1),  # unnumbered: it calls when it has heard the neighbour
        ([("Active", INVALID), ("Active", INVALID), ("Connect", VALID), ("Active", VALID)], 4),
    ],
)
def test_the_next_tier_waits_for_first_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, answers: list[tuple[str, str]], looks: int
) -> None:
    bgpd = Bgpd(*answers)
    monkeypatch.setattr(boot, "vty_json", bgpd.json)
    monkeypatch.setattr(boot, "vty", bgpd.text)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        bgpd.asked += 1

    monkeypatch.setattr(boot, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    boot._wait_for_first_calls(time.monotonic() + 60, SimpleNamespace(folder=tmp_path))  # type: ignore[arg-type]
    assert len(slept) == looks - 1


def test_a_neighbour_out_of_reach_is_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A port that is down in the configuration has a next hop that never becomes valid."""
    bgpd = Bgpd(("Active", INVALID))
    monkeypatch.setattr(boot, "vty_json", bgpd.json)
    monkeypatch.setattr(boot, "vty", bgpd.text)
    start = time.monotonic()
    boot._wait_for_first_calls(start + 0.2, SimpleNamespace(folder=tmp_path))  # type: ignore[arg-type]
    assert 0.2 <= time.monotonic() - start < 5
