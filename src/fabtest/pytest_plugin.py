"""pytest plugin: ``pytest --fabtest-lab NAME`` gives tests the fixtures of a running lab.

``lab``, ``fabric``, ``switches``, ``servers`` are the lab and its parts, ``flows`` makes RoCEv2 flows, and ``verdict``
turns a ``fabtest.checks`` verdict into a test result: fail fails, inconclusive skips with the reason, and each is
listed at the end of the run, in JUnit properties, and in ``--fabtest-report FILE.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fabtest.checks.verdict import Verdict
    from fabtest.model import Fabric
    from fabtest.roce.transfer import Transfer
    from fabtest.runtime.base import Lab

VERDICTS = pytest.StashKey[list[dict[str, Any]]]()
INCONCLUSIVE = "INCONCLUSIVE: "
NOT_APPLICABLE = "not applicable: "


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options."""
    group = parser.getgroup("fabtest", "fabrics of fabtest")
    group.addoption(
        "--fabtest-lab", metavar="NAME", default="", help="the running lab that tests with `lab` are run against"
    )
    group.addoption("--fabtest-report", metavar="FILE", default="", help="write the verdicts as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Room for verdicts."""
    config.stash[VERDICTS] = []


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Lab:
    """The running lab named by --fabtest-lab (or the only one that is up)."""
    from fabtest.cli.common import the_lab
    from fabtest.errors import FabtestError

    try:
        return the_lab(request.config.getoption("--fabtest-lab"))
    except FabtestError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def fabric(lab: Lab) -> Fabric:
    """The lab's fabric: what was designed."""
    return lab.fabric


@pytest.fixture(scope="session")
def switches(lab: Lab) -> list[Any]:
    """The live switches: ``.exec``, ``.db``, ``.vty``."""
    return [lab.node(s.name) for s in lab.fabric.switches]


@pytest.fixture(scope="session")
def servers(lab: Lab) -> list[Any]:
    """The live servers."""
    return [lab.node(s.name) for s in lab.fabric.servers]


class Flows:
    """RoCEv2 flows between servers of a lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def send(
        self,
        src: str,
        dst: str,
        *,
        count: int = 1000,
        flows: int = 1,
        pps: int = 0,
        size: int = 64,
        dscp: int = 26,
        family: int | None = None,
    ) -> Transfer:
        """Send packets from one NIC port (``gpu1`` or ``gpu1:eth2``) to another; what arrived and what did not."""
        from fabtest.roce.send import nic_named
        from fabtest.roce.transfer import transfer

        family = family or self.lab.fabric.families[0]
        return transfer(
            self.lab, nic_named(self.lab, src, family), nic_named(self.lab, dst, family), count=count, flows=flows,
            pps=pps, payload=size, dscp=dscp,
        )  # fmt: skip


@pytest.fixture
def flows(lab: Lab) -> Flows:
    """RoCEv2 flows: ``flows.send("gpu1", "gpu2", count=1000)``."""
    return Flows(lab)


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    """Call with a check, and what it takes: its verdict becomes the test's."""
    import redis

    from fabtest.checks.verdict import NotApplicable, Outcome, inconclusive
    from fabtest.errors import FabtestError

    def run(check: Callable[..., Verdict], *args: Any) -> Verdict:
        try:
            found = check(*args)
        except NotApplicable as reason:
            pytest.skip(NOT_APPLICABLE + str(reason))
        except (FabtestError, redis.RedisError, OSError) as error:  # a node that is off, a daemon that is gone
            why = error.message if isinstance(error, FabtestError) else error
            found = inconclusive(name_of(check), f"the lab does not let itself be looked at: {why}")
        request.config.stash[VERDICTS].append(found.as_json())
        request.node.user_properties += [("verdict", str(found.outcome)), *found.numbers.items()]
        if found.outcome is Outcome.FAIL:
            pytest.fail(f"{found.check}: {found.sentence}", pytrace=False)
        if found.outcome is Outcome.INCONCLUSIVE:
            pytest.skip(INCONCLUSIVE + found.sentence)
        return found

    return run


def name_of(check: Callable[..., Verdict]) -> str:
    """``suite.function`` of a check that could not name itself."""
    return f"{check.__module__.rpartition('.')[2].replace('_', '-')}.{check.__name__.replace('_', '-')}"


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Each verdict's sentence."""
    found = config.stash[VERDICTS]
    if found:
        terminalreporter.section("verdicts")
        for v in found:
            colour = {"pass": "green", "fail": "red"}.get(v["outcome"], "yellow")
            terminalreporter.write(f"{v['outcome']:<13}", **{colour: True})
            terminalreporter.write_line(f"{v['check']}: {v['sentence']}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """The report file."""
    file = session.config.getoption("--fabtest-report")
    if file:
        Path(file).write_text(json.dumps({"verdicts": session.config.stash[VERDICTS]}, indent=2) + "\n")
