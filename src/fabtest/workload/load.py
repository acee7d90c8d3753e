"""From a workload file to a ``WorkloadSpec``, or to every fault in the file at once."""

from __future__ import annotations

import difflib
from dataclasses import replace
from importlib import resources
from pathlib import Path as FilePath

from pydantic import ValidationError

from fabtest.errors import FileProblem, TopologyError, WorkloadError
from fabtest.topology.faults import fault_of, merge
from fabtest.topology.source import parse
from fabtest.workload.schema import PATTERNS, WorkloadSpec
from fabtest.workload.units import parse_rate


def load_workload(file: str | FilePath) -> WorkloadSpec:
    """Read a workload file. Raises FileProblem, or WorkloadError with every fault and its position."""
    path = FilePath(file)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileProblem(f"{path}: not UTF-8 text: byte {error.start}") from None
    except OSError as error:
        raise FileProblem(f"cannot read {path}: {error.strerror}", hint="`traffic-list` lists those shipped") from None
    return load_workload_text(text, str(file), default_name=path.stem)


def load_workload_text(text: str, file: str, *, default_name: str = "workload") -> WorkloadSpec:
    """The same from text; ``file`` is used in messages only. One job may be written without ``jobs:``."""
    try:
        source = parse(text, file)
    except TopologyError as error:
        # The shared reader speaks of topologies.
        told = [replace(p, remedy=p.remedy.replace("kind: rail", "pattern: ring-allreduce")) for p in error.problems]
        raise WorkloadError(error.file, told) from None
    data = dict(source.data)
    if "pattern" in data and "jobs" not in data:
        job = {key: value for key, value in data.items() if key not in WorkloadSpec.model_fields}
        data = {key: value for key, value in data.items() if key in WorkloadSpec.model_fields}
        data["jobs"] = [job]
        for path, mark in list(source.marks.items()):
            key_mark = path[:1] == ("\0key",)
            plain = path[1:] if key_mark else path
            if plain and plain[0] in job:
                moved = ("jobs", 0, *plain)
                source.marks[("\0key", *moved) if key_mark else moved] = mark
        source.marks[("jobs",)] = source.marks[("jobs", 0)] = source.marks[()]
        source.data = data
    problems = []
    jobs = data.get("jobs")
    for n, job in enumerate(jobs if isinstance(jobs, list) else []):
        pattern = job.get("pattern") if isinstance(job, dict) else None
        if not isinstance(pattern, str) or pattern not in PATTERNS:
            near = difflib.get_close_matches(str(pattern), PATTERNS, 1)
            remedy = f"did you mean {near[0]}?" if near else f"one of {', '.join(PATTERNS)}"
            what = "missing" if pattern is None else f"{pattern!r} is not a pattern"
            problems.append(source.problem(("jobs", n, "pattern"), what, remedy))
    if problems:
        raise WorkloadError(file, problems)
    try:
        spec = WorkloadSpec.model_validate(data)
    except ValidationError as error:
        found = []
        for e in error.errors(include_url=False):
            loc = tuple(e["loc"])
            model: type = WorkloadSpec
            if len(loc) > 2 and loc[0] == "jobs" and isinstance(loc[1], int):
                pattern = jobs[loc[1]].get("pattern") if isinstance(jobs, list) else ""
                if e["type"] == "extra_forbidden":
                    model = PATTERNS[pattern]
                    known = list(model.model_fields)
                    near = difflib.get_close_matches(str(loc[-1]), known, 1, 0.5)
                    remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
                    at = tuple(p for p in loc if p != pattern)
                    found.append(source.problem(at, "unknown key", remedy, key=True))
                    continue
            found.append(fault_of(source, model, dict(e)))
        raise WorkloadError(file, merge(found)) from None
    faults = [
        source.problem(("jobs", n, "service"), "unreliable service has nothing to slow it down", "give it a `rate:`")
        for n, job in enumerate(spec.jobs)
        if getattr(job, "service", "rc") == "uc" and getattr(job, "rate", None) is None
    ]
    faults += [
        source.problem(("jobs", n, "rate"), f"{getattr(job, 'rate', 0)} is no rate to send at", "more than 0")
        for n, job in enumerate(spec.jobs)
        if getattr(job, "rate", None) and not parse_rate(str(getattr(job, "rate", "")), 1500)
    ]
    faults += [
        source.problem(("jobs", n, "service"), "an RDMA READ needs the reliable service", "remove it")
        for n, job in enumerate(spec.jobs)
        if job.pattern == "storage-read" and getattr(job, "service", "rc") == "uc"
    ]
    faults += [
        source.problem(("jobs", n, "servers"), f"{name} stands there twice", "remove one")
        for n, job in enumerate(spec.jobs)
        for name in _twice(getattr(job, "servers", "all"))
    ]
    if faults:
        raise WorkloadError(file, faults)
    if not spec.name:
        spec = spec.model_copy(update={"name": default_name})
    return spec


def _twice(names: object) -> list[str]:
    return sorted({n for n in names if names.count(n) > 1}) if isinstance(names, list) else []


def shipped_workloads() -> dict[str, FilePath]:
    """The workloads that come with fabtest, by name."""
    for folder in (
        FilePath(__file__).parents[3] / "traffic",
        FilePath(str(resources.files("fabtest"))) / "_data/traffic",
    ):
        if folder.is_dir():
            return {f.stem: f for f in sorted(folder.glob("*.yml"))}
    return {}


def workload_path(word: str) -> FilePath:
    """A file the user named, by path or, for a shipped one, by name. Raises FileProblem."""
    path = FilePath(word)
    if path.is_file():
        return path
    shipped = shipped_workloads()
    if word in shipped:
        return shipped[word]
    if path.suffix in (".yml", ".yaml") and path.stem in shipped and path.parent.name == "traffic":
        return shipped[path.stem]
    near = difflib.get_close_matches(path.stem, shipped, 1)
    hint = f"did you mean {near[0]}?" if near else f"shipped: {', '.join(shipped)}"
    raise FileProblem(f"no workload named {word!r} and no such file", hint=hint)
