"""From paths to findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fabtest.errors import FileProblem, UsageError
from fabtest.lint import rules_buffer, rules_port, rules_qos  # noqa: F401  (they fill RULES)
from fabtest.lint.fabric import FABRIC_RULES, FabricRule, fabric_hits
from fabtest.lint.read import ConfigFile, read_config
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
    """Lint files and folders; the files of one folder are a fabric. Raises FileProblem, UsageError."""
    if profile not in PROFILES:
        raise UsageError(f"no profile {profile!r}", hint=f"profiles: {', '.join(PROFILES)}")
    findings: list[Finding] = []
    unchecked: list[str] = []
    files: list[str] = []
    for path in paths:
        group = [read_config(file) for file in config_files(path)]
        files += [str(f.path) for f in group]
        found, not_checked = lint_files(group, profile, yang)
        findings += found
        unchecked += not_checked
    shown = sorted({f for f in findings if f.severity >= least})
    return LintReport(tuple(shown), tuple(files), tuple(unchecked), "yang" if yang else "reduced")


def config_files(path: Path) -> list[Path]:
    """A file itself; of a folder every ``*/config_db.json``, else every ``*.json`` that may be one."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileProblem(f"no such file or folder: {path}")
    found = sorted(path.glob("*/config_db.json"), key=lambda p: natural(p.parent.name))
    if (path / "config_db.json").is_file():
        found.insert(0, path / "config_db.json")
    found = found or sorted(
        (p for p in path.glob("*.json") if not p.name.endswith(".fixed.json")), key=lambda p: natural(p.name)
    )
    if not found:
        raise FileProblem(f"{path} holds no config_db.json", hint="expected <switch>/config_db.json, or *.json files")
    return found


def natural(name: str) -> tuple[str, int, str]:
    """leaf2 before leaf10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0), name


def switch_name(file: ConfigFile) -> str:
    """Its hostname, else its folder or file."""
    host = file.config.get("DEVICE_METADATA", {}).get("localhost", {}).get("hostname")
    if isinstance(host, str) and host:
        return host
    return file.path.parent.name if file.path.name == "config_db.json" else file.path.stem


def lint_files(
    files: Iterable[ConfigFile], profile: str = "auto", yang: YangModels | None = None
) -> tuple[list[Finding], list[str]]:
    """Findings of a group of files, and what could not be checked."""
    findings: list[Finding] = []
    unchecked: list[str] = []
    fabric: dict[str, SwitchConfig] = {}
    of_switch: dict[str, ConfigFile] = {}
    for file in files:
        name = switch_name(file)
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
            findings.append(
                Finding(str(file.path), 1, FORM, name, "DEVICE_METADATA|localhost|hostname",
                        f"{name} is also the hostname of {of_switch[name].path}")
            )  # fmt: skip
        fabric[name], of_switch[name] = s, file
    if len(fabric) > 1:
        for rule_id, name, hit in fabric_hits(fabric):
            file = of_switch[name]
            findings.append(Finding(str(file.path), file.line_of(hit.where), rule_id, name, hit.where, hit.what))
    return findings, unchecked
