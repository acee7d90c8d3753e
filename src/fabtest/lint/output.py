"""Findings as SARIF 2.1.0 (code scanning), JUnit XML (CI) and JSON; and the rules as documentation."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any
from urllib.parse import quote

from fabtest import __version__
from fabtest.lint.fabric import FABRIC_RULES, FabricRule
from fabtest.lint.rule import RULES, Rule, Severity
from fabtest.lint.run import FILE_RULES, NOT_IN_A_FILE, Finding, LintReport

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def every_rule() -> dict[str, Rule | FabricRule]:
    """Rules of a file, a switch and a fabric, by id."""
    found: dict[str, Rule | FabricRule] = {**FILE_RULES, **RULES, **FABRIC_RULES}
    return dict(sorted(found.items()))


def as_json(report: LintReport) -> dict[str, Any]:
    """For ``--format json``; keys are part of the interface."""
    return {
        "fabtest": __version__,
        "schema": report.schema,
        "files": list(report.files),
        "counts": {level.name.lower(): sum(f.severity is level for f in report.findings) for level in Severity},
        "findings": [
            {
                "rule": f.rule, "severity": f.severity.name.lower(), "file": f.file, "line": f.line, "switch": f.switch,
                "where": f.where, "what": f.what, "title": f.title,
            }
            for f in report.findings
        ],
        "not_checked": list(report.unchecked),
    }  # fmt: skip


def as_sarif(report: LintReport) -> dict[str, Any]:
    """Static Analysis Results Interchange Format 2.1.0 (OASIS)."""
    used = [r for r in every_rule().values() if any(f.rule == r.id for f in report.findings)]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "fabtest config-lint", "version": __version__,
                "rules": [
                    {
                        "id": r.id, "shortDescription": {"text": r.title}, "fullDescription": {"text": r.why},
                        "help": {"text": r.remedy}, "defaultConfiguration": {"level": LEVELS[r.severity]},
                    }
                    for r in used
                ],
            }},
            "results": [
                {
                    "ruleId": f.rule, "level": LEVELS[f.severity],
                    "message": {"text": f"{f.where}: {f.what}" if f.where else f.what},
                    "locations": [{"physicalLocation": {
                        "artifactLocation": {"uri": quote(f.file)}, "region": {"startLine": f.line},
                    }}],
                }
                for f in report.findings
            ],
        }],
    }  # fmt: skip


def as_junit(report: LintReport) -> str:
    """A test case per file; its findings are its failures."""
    suite = ElementTree.Element("testsuite", name="config-lint", tests=str(len(report.files)))
    failed = 0
    for file in report.files:
        case = ElementTree.SubElement(suite, "testcase", classname="config-lint", name=file)
        found = [f for f in report.findings if f.file == file]
        failed += bool(found)
        for f in found:
            failure = ElementTree.SubElement(case, "failure", type=f.rule, message=_printable(f"{f.where}: {f.what}"))
            failure.text = f"{f.file}:{f.line}: {f.severity.name.lower()}: {f.title}"
    suite.set("failures", str(failed))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _printable(words: str) -> str:
    """Without what XML 1.0 cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd]", "?", words)


def line(finding: Finding) -> str:
    """``file:line: severity RULE where: what``, as compilers print it."""
    where = f"{finding.where} " if finding.where else ""
    words = f"{finding.file}:{finding.line}: {finding.severity.name.lower()} {finding.rule}: {where}{finding.what}"
    return words.encode("utf-8", "backslashreplace").decode()


def explain(rule: Rule | FabricRule) -> str:
    """A rule for people."""
    return "\n".join([
        f"{rule.id} ({rule.severity.name.lower()}): {rule.title}.", "", rule.why, "", f"Instead: {rule.remedy}",
        f"Source: {rule.source}",
    ])  # fmt: skip


def documentation() -> str:
    """``docs/lint.md``'s list of rules."""
    rows = [
        f"| `{r.id}` | {r.severity.name.lower()} | {r.title} | {r.why} | {r.remedy} | {r.source} |".replace("\n", " ")
        for r in every_rule().values()
    ]
    head = ["| rule | severity | what | why | instead | source |", "|---|---|---|---|---|---|"]
    rest = ["", "What a file cannot show, and so no rule looks for:", ""]
    rest += [f"* {what}: {why}." for what, why in NOT_IN_A_FILE.items()]
    return "\n".join([*head, *rows, *rest]) + "\n"
