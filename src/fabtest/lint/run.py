"""From paths to findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fabtest.errors import FileProblem, UsageError
from fabtest.lint import rules_buffer, rules_port, rules_qos  # noqa: F401  (they fill RULES)
from fabtest.lint.cabling import CablingRow, read_cabling
from fabtest.lint.fabric import FABRIC_RULES, SAME_NAME, FabricRule, cabling_hits, fabric_hits
from fabtest.lint.read import ConfigFile, Unreadable, read_config
from fabtest.lint.rule import RULES, Rule, Severity
from fabtest.lint.switch import SwitchConfig

if TYPE_CHECKING:
    from fabtest.lint.yang import YangModels

#: Faults of form and of SONiC's YANG models have these ids: whole classes of faults, not a rule of ours.
FORM = "FORM"
YANG = "YANG"
FILE_RULES = {
    r.id: r
    for r in (
        FabricRule(FORM, Severity.ERROR, "The file is not what SONiC reads",
                   "text where a table belongs, a key twice, numbers without quotes, a byte order mark, or no JSON at all",
                   "Objects of tables of rows of fields, with every value as text.", "SONiC's sonic-cfggen"),
        FabricRule(YANG, Severity.ERROR, "SONiC's YANG models refuse it (only with `--yang`)",
                   "`config replace`, `config apply-patch` and the check after an upgrade refuse the whole file.",
                   "Write what the model named allows.", "SONiC's YANG models, those given with --yang"),
    )
}  # fmt: skip
#: Rules that are a reduced form of the YANG models: the models themselves replace them.
REDUCED = frozenset({"GEN061", "GEN062"})
#: The name of a switch's configuration; with a number, that of one of its ASICs.
CONFIG = re.compile(r"config_db([0-9]*)\.json")
PROFILES = ("auto", "roce", "lossy")
#: Rows of SONiC's reports that no file can show.
NOT_IN_A_FILE = {
    "Cable length changed at run time does not refresh the headroom (sonic-swss issue 4004)": "an event, not a state",
    "`config qos reload` overwrites custom maps (SONiC issue 223)": "depends on the image's templates",
    "Removing pfc_enable leaves the ASIC's mask (sonic-swss issue 1055)": "seen in ASIC_DB only: check `qos-config.asic`",
    "A single QP has one UDP source port": "of the hosts; the check `ecmp.workload` measures it",
    "The hash algorithm changes with a SAI upgrade (sonic-buildimage issue 23780)": "depends on the image",
    "`ecnconfig` cannot create profiles (sonic-utilities issue 2448)": "a fault of the command line tool",
    "DCQCN is off on the hosts": "of the hosts",
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One fault, where it stands."""

    file: str
    line: int
    rule: str
    switch: str
    where: str
    what: str

    @property
    def severity(self) -> Severity:
        """Of its rule."""
        return rule_of(self.rule).severity

    @property
    def title(self) -> str:
        """Of its rule."""
        return rule_of(self.rule).title


def rule_of(id: str) -> Rule | FabricRule:
    """A rule by its id."""
    return RULES.get(id) or FABRIC_RULES.get(id) or FILE_RULES[id]


@dataclass(frozen=True)
class LintReport:
    """All findings, the files looked at, and what could not be checked (by file)."""

    findings: tuple[Finding, ...]
    files: tuple[str, ...]
    unchecked: tuple[str, ...]
    #: What values were checked with: ``yang`` (SONiC's models) or ``reduced`` (our short form of them).
    schema: str = "reduced"


def lint_paths(
    paths: Sequence[Path], profile: str = "auto", least: Severity = Severity.INFO, yang: YangModels | None = None
) -> LintReport:
    """Lint files and folders; the files of one folder are a fabric.

    A file that cannot be read is a finding, and the others are linted. Raises FileProblem if no file at all can be read,
    and UsageError.
    """
    if profile not in PROFILES:
        raise UsageError(f"no profile {profile!r}", hint=f"profiles: {', '.join(PROFILES)}")
    findings: list[Finding] = []
    unchecked: list[str] = []
    files: list[str] = []
    broken: list[tuple[Path, FileProblem]] = []
    some_read = False
    for path in paths:
        group, problems = _read(path)
        some_read = some_read or bool(group)
        broken += problems
        files += [*(str(f.path) for f in group), *(str(file) for file, _ in problems)]
        found, not_checked = lint_files(group, profile, yang, read_cabling(path) if path.is_dir() else ())
        findings += found
        unchecked += [*not_checked, *_beside(path, paths)]
    if broken and not some_read:
        raise broken[0][1]
    findings += [_unreadable(file, problem) for file, problem in broken]
    shown = sorted({f for f in findings if f.severity >= least})
    return LintReport(tuple(shown), tuple(files), tuple(unchecked), "yang" if yang else "reduced")


def _read(path: Path) -> tuple[list[ConfigFile], list[tuple[Path, FileProblem]]]:
    """What a path names: files that were read, and those that could not be."""
    group: list[ConfigFile] = []
    problems: list[tuple[Path, FileProblem]] = []
    try:
        files = config_files(path)
    except FileProblem as problem:
        return [], [(path, problem)]
    for file in files:
        try:
            group.append(read_config(file))
        except FileProblem as problem:
            problems.append((file, problem))
    return group, problems


def _unreadable(file: Path, problem: FileProblem) -> Finding:
    line, what = (problem.line, problem.what) if isinstance(problem, Unreadable) else (1, problem.message)
    return Finding(str(file), line, FORM, _folder_name(file), "", what)


def _beside(path: Path, paths: Sequence[Path]) -> list[str]:
    """Configurations of a switch's ASICs beside a file that was named alone."""
    if path.name != "config_db.json" or not path.is_file():
        return []
    others = [p for p in _configs(path.parent) if p != path and p not in paths]
    if not others:
        return []
    names = ", ".join(p.name for p in others)
    return [f"{path}: {names} beside it not checked: name the folder, and every ASIC is linted with it"]


def config_files(path: Path) -> list[Path]:
    """A file itself; of a folder its ``config_db.json`` and those of its folders, with those of ASICs
    (``config_db0.json``, ...); else every ``*.json`` that may be one."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileProblem(f"no such file or folder: {path}")
    switches = sorted({p.parent for p in path.glob("*/config_db*.json")}, key=lambda p: natural(p.name))
    found = [*_configs(path), *(file for switch in switches for file in _configs(switch))]
    found = found or sorted(
        (p for p in path.glob("*.json") if not p.name.endswith(".fixed.json")), key=lambda p: natural(p.name)
    )
    if not found:
        raise FileProblem(f"{path} holds no config_db.json", hint="expected <switch>/config_db.json, or *.json files")
    return found


def _configs(folder: Path) -> list[Path]:
    """``config_db.json`` of a folder, and those of the ASICs of a switch that has several."""
    return sorted(
        (p for p in folder.glob("config_db*.json") if CONFIG.fullmatch(p.name)), key=lambda p: natural(p.stem)
    )


def natural(name: str) -> tuple[str, int, str]:
    """leaf2 before leaf10."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits[-18:] or 0) if digits.isascii() else 0, name


def switch_name(file: ConfigFile, host: str = "") -> str:
    """Its hostname, else its folder or file. An ASIC of a switch (``config_db0.json``) is ``<host>-asic0``."""
    own = file.config.get("DEVICE_METADATA", {}).get("localhost", {}).get("hostname")
    name = own if isinstance(own, str) and own else host or _folder_name(file.path)
    asic = CONFIG.fullmatch(file.path.name)
    suffix = f"-asic{asic[1]}" if asic and asic[1] else ""
    return name if name.endswith(suffix) else name + suffix


def _folder_name(path: Path) -> str:
    return path.absolute().parent.name if CONFIG.fullmatch(path.name) else path.stem


def lint_files(
    files: Iterable[ConfigFile],
    profile: str = "auto",
    yang: YangModels | None = None,
    cabling: Sequence[CablingRow] = (),
) -> tuple[list[Finding], list[str]]:
    """Findings of a group of files, and what could not be checked."""
    findings: list[Finding] = []
    unchecked: list[str] = []
    fabric: dict[str, SwitchConfig] = {}
    of_switch: dict[str, ConfigFile] = {}
    files = list(files)
    hosts = {f.path.parent: switch_name(f) for f in files if f.path.name == "config_db.json"}
    for file in files:
        name = switch_name(file, hosts.get(file.path.parent, ""))
        s = SwitchConfig(name, file.config)
        for fault in file.faults:
            findings.append(Finding(str(file.path), fault.line, FORM, name, fault.where, fault.what))
        roce = s.roce if profile == "auto" else profile == "roce"
        for rule in RULES.values():
            if (rule.roce and not roce) or (yang is not None and rule.id in REDUCED):
                continue
            for hit in rule.check(s):
                findings.append(Finding(str(file.path), file.line_of(hit.where), rule.id, name, hit.where, hit.what))
        if yang is not None:
            hits, without_model = yang.check(file.config)
            findings += [Finding(str(file.path), file.line_of(h.where), YANG, name, h.where, h.what) for h in hits]
            if without_model:
                unchecked.append(
                    f"{file.path}: no YANG model describes {', '.join(without_model)}: not checked by YANG"
                )
        if profile == "roce" and not s.lossless:
            unchecked.append(f"{file.path}: no port has PFC (PORT_QOS_MAP pfc_enable), so nothing here is lossless")
        missing = [t for t in ("PORT", "PORT_QOS_MAP", "BUFFER_PG", "DEVICE_METADATA") if t not in file.config]
        if missing:
            unchecked.append(f"{file.path}: has no {', '.join(missing)}: what depends on that was not checked")
        if name in fabric:
            where = "DEVICE_METADATA|localhost|hostname"
            what = f"{name} is also the hostname of {of_switch[name].path}"
            findings.append(Finding(str(file.path), file.line_of(where), SAME_NAME, name, where, what))
        fabric[name], of_switch[name] = s, file
    if len(fabric) > 1 or cabling:
        for rule_id, name, hit in (*fabric_hits(fabric), *cabling_hits(fabric, cabling)):
            file = of_switch[name]
            findings.append(Finding(str(file.path), file.line_of(hit.where), rule_id, name, hit.where, hit.what))
    return findings, unchecked
