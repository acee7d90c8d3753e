"""The lock of a lab: what was built, and with what, so that a run can be repeated on another machine.

Hashes of the topology and of every rendered file, image contents, versions of the programs that decide how a fabric
behaves, and the seeds of its hashes. ``lab-up --locked FILE`` refuses to build what differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fabtest import __version__
from fabtest.errors import FileProblem, LabError
from fabtest.model import Fabric
from fabtest.render import iter_files
from fabtest.runtime.processes import program
from fabtest.runtime.state import LabFolder

LOCK = "lab.lock"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class LabLock:
    """Everything a lab's behaviour depends on. ``images``: reference -> content (or registry digest, or id)."""

    format: int
    fabtest: str
    runtime: str
    topology: str
    rendered: str
    images: dict[str, str]
    versions: dict[str, str]
    seeds: dict[str, int]


def lab_lock(fabric: Fabric, source: str, runtime: str) -> LabLock:
    """The lock of a fabric on this machine. Raises MachineError, LabError where a version cannot be told."""
    digest = hashlib.sha256()
    for name, content in iter_files(fabric):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    versions = {"kernel": os.uname().release}
    images: dict[str, str] = {}
    if runtime == "containerlab":
        images, more = _of_containers(fabric)
        versions |= more
    else:
        versions["frr"] = _first_version([program("zebra", "frr"), "--version"])
        versions["redis"] = _first_version([program("redis-server", "redis-server"), "--version"])
    return LabLock(
        format=FORMAT,
        fabtest=__version__,
        runtime=runtime,
        topology=hashlib.sha256(source.encode()).hexdigest(),
        rendered=digest.hexdigest(),
        images=images,
        versions=versions,
        seeds={s.name: s.hash.seed for s in fabric.switches},
    )


def _of_containers(fabric: Fabric) -> tuple[dict[str, str], dict[str, str]]:
    """Images and versions of a containerlab lab; FRR's is that in the switch image."""
    from fabtest.images.build import CONTENT
    from fabtest.render.containerlab import images_of
    from fabtest.runtime.containerlab.engine import Engine
    from fabtest.runtime.containerlab.tool import Containerlab

    engine, tool, wanted = Engine(), Containerlab.find(), images_of(fabric)
    images = {}
    for reference in (wanted.sonic, wanted.server):
        found = engine.image(reference)
        if found is not None:  # that it is missing, the deploy says
            images[reference] = found.labels.get(CONTENT) or found.digest or found.id
    frr = _first_version_of(engine.output(wanted.sonic, ["/usr/lib/frr/zebra", "--version"]))
    return images, {"frr": frr, "containerlab": ".".join(map(str, tool.version)), "docker": engine.version()}


def _first_version(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return _first_version_of(done.stdout)


def _first_version_of(text: str) -> str:
    found = re.search(r"\d+\.\d+(?:\.\d+)*", text)
    return found[0] if found else "unknown"


def write_lock(lock: LabLock, folder: LabFolder) -> None:
    """Into the lab's folder."""
    (folder.path / LOCK).write_text(json.dumps(asdict(lock), indent=2) + "\n")


def read_lock(file: str) -> LabLock:
    """A lock file. Raises FileProblem."""
    try:
        data: dict[str, Any] = json.loads(Path(file).read_text())
        lock = LabLock(**data)
    except OSError as error:
        raise FileProblem(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise FileProblem(f"{file} is not a lock file", hint="`lab-lock --out FILE` writes one") from None
    if lock.format != FORMAT:
        raise FileProblem(f"{file} is of format {lock.format}, this fabtest reads {FORMAT}")
    return lock


def differences(wanted: LabLock, have: LabLock) -> list[str]:
    """What differs, one line each."""
    lines = []
    for key in ("fabtest", "runtime", "topology", "rendered"):
        a, b = getattr(wanted, key), getattr(have, key)
        if a != b:
            lines.append(f"{key}: {_short(a)} is locked, {_short(b)} is here")
    for key in ("images", "versions", "seeds"):
        a, b = getattr(wanted, key), getattr(have, key)
        for name in sorted({*a, *b}):
            if a.get(name) != b.get(name):
                lines.append(
                    f"{key.removesuffix('s')} {name}: {_short(a.get(name))} is locked, {_short(b.get(name))} is here"
                )
    return lines


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text[:12] if len(text) == 64 else text


def check_lock(wanted: LabLock, have: LabLock, file: str) -> None:
    """Raises LabError with every difference."""
    if lines := differences(wanted, have):
        raise LabError(
            f"what would be built differs from {file}:\n" + "\n".join(f"  {line}" for line in lines),
            hint="without --locked it is built as it is here",
        )
