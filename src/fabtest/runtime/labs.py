"""Which runtime a lab is on, and every lab of every runtime."""

from __future__ import annotations

import os
from pathlib import Path

from fabtest.errors import FabtestError, UsageError
from fabtest.runtime.base import LabInfo, Runtime
from fabtest.runtime.state import LabFolder, folders

NAMES = ("netns", "containerlab")
#: Chooses the runtime where neither the command nor the topology does.
VARIABLE = "FABTEST_RUNTIME"


def runtime_named(name: str) -> Runtime:
    """A runtime. Raises UsageError."""
    if name == "netns":
        from fabtest.runtime.netns import NetnsRuntime

        return NetnsRuntime()
    if name == "containerlab":
        from fabtest.runtime.containerlab.runtime import ContainerlabRuntime

        return ContainerlabRuntime()
    raise UsageError(f"no runtime {name!r}", hint=f"runtimes: {', '.join(NAMES)}")


def chosen(option: str, topology: str) -> Runtime:
    """By the command's option, else the environment, else the topology."""
    return runtime_named(option or os.environ.get(VARIABLE, "") or topology)


def runtime_of(lab: str) -> Runtime:
    """The runtime a lab is on; of one without a record, that which has something of it."""
    record = LabFolder(lab).read()
    if record is not None:
        return runtime_named(record.runtime if record.runtime in NAMES else "netns")
    from fabtest.runtime.namespaces import existing

    if lab not in existing() and lab in _container_labs():
        return runtime_named("containerlab")
    return runtime_named("netns")


def _container_labs() -> set[str]:
    """Labs that have containers but no files: of before a reboot. Empty where there is no engine."""
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        return set()
    from fabtest.runtime.containerlab.engine import Engine

    try:
        return set(Engine().labs())
    except FabtestError:
        return set()


def all_labs() -> list[LabInfo]:
    """Every lab on this machine, by name."""
    containers = _container_labs()
    found = [i for i in runtime_named("netns").list() if i.state != "broken" or i.name not in containers]
    records = [folder.read() for folder in folders()]
    if any(record is not None and record.runtime == "containerlab" for record in records):
        found += runtime_named("containerlab").list()
    known = {info.name for info in found}
    for name in containers - known:
        found.append(LabInfo(name, "broken", "", 0, 0, "", "containerlab"))
    return sorted(found, key=lambda info: info.name)
