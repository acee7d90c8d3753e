"""config-lint: needs no root, no Docker, no network."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit

from fabtest.cli.common import err, fabtest_task
from fabtest.errors import FileProblem, UsageError

if TYPE_CHECKING:
    from fabtest.lint.run import LintReport
    from fabtest.lint.yang import YangModels

SEVERITIES = ("info", "warning", "error")
FORMATS = ("text", "json", "sarif", "junit")
REDUCED_CHECK = (
    "values were checked by a reduced form of SONiC's YANG models; --yang DIR checks them with the models themselves "
    "(a switch has them in /usr/local/yang-models)"
)


@fabtest_task(
    rest="path",
    help={
        "path": "config_db.json files, or folders of a fabric (<switch>/config_db.json); one folder is one fabric",
        "profile": "roce: judge as lossless; lossy: leave those rules out; auto: roce where a file has PFC or ECN",
        "format": f"{', '.join(FORMATS)}",
        "severity": f"the least that is shown and counts: {', '.join(SEVERITIES)}",
        "fix": "write corrected copies beside the files (<name>.fixed.json) where one right answer exists",
        "yang": "check values with SONiC's own YANG models in this folder (*.yang, as in a switch's "
        "/usr/local/yang-models), or in one folder per release inside it (202511/*.yang)",
        "release": "with --yang: the folder of models to use, such as 202511; the newest if not given",
        "explain": "say what a rule looks for, why, and what to write instead",
    },
)
def config_lint(
    c: Any,
    path: list[str] | None = None,
    profile: str = "auto",
    format: str = "text",
    severity: str = "info",
    fix: bool = False,
    yang: str = "",
    release: str = "",
    explain: str = "",
) -> None:
    """Find mistakes in SONiC configurations before production does: config-lint PATH...

    Exit code 0: nothing found; 1: something found; 2: no file could be read, or a corrected copy not be written.
    """
    from fabtest.lint.output import as_json, as_junit, as_sarif, every_rule, line
    from fabtest.lint.output import explain as explained
    from fabtest.lint.rule import Severity
    from fabtest.lint.run import lint_paths

    if explain:
        import difflib

        rules = every_rule()
        found = rules.get(explain.upper())
        if found is None:
            near = difflib.get_close_matches(explain.upper(), rules, 3)
            raise UsageError(
                f"no rule {explain!r}", hint=f"did you mean {', '.join(near)}?" if near else "see docs/lint.md"
            )
        print(explained(found))
        return
    if not path:
        raise UsageError("no file", hint="config-lint DIR, or config-lint config_db.json")
    if format not in FORMATS:
        raise UsageError(f"no format {format!r}", hint=f"formats: {', '.join(FORMATS)}")
    if severity not in SEVERITIES:
        raise UsageError(f"no severity {severity!r}", hint=f"severities: {', '.join(SEVERITIES)}")
    models = _models(yang, release)
    report = lint_paths([Path(p) for p in path], profile, Severity[severity.upper()], models)
    if format == "text":
        for finding in report.findings:
            print(line(finding))
        for note in report.unchecked:
            err.print(f"note: {note}")
        if models is None:
            err.print(f"note: {REDUCED_CHECK}")
        counts = as_json(report)["counts"]
        files = f"{len(report.files)} file{'s' if len(report.files) != 1 else ''}"
        err.print(f"{files}: {counts['error']} errors, {counts['warning']} warnings")
        if report.findings:
            err.print(f"why, and what to write instead: config-lint --explain {report.findings[0].rule}")
    elif format == "junit":
        sys.stdout.write(as_junit(report))
    else:
        print(jsonlib.dumps(as_json(report) if format == "json" else as_sarif(report), indent=2))
    written = _fix(report, profile, models) if fix else True
    if not written:
        raise Exit(code=FileProblem.exit_code)
    if report.findings:
        raise Exit(code=1)


def _models(folder: str, release: str) -> YangModels | None:
    if folder:
        from fabtest.lint.yang import YangModels

        return YangModels(Path(folder), release)
    if release:
        raise UsageError(
            "--release chooses among YANG models, and there are none without --yang",
            hint="--yang DIR, with the models of each release in DIR/<release>/*.yang",
        )
    return None


def _fix(report: LintReport, profile: str, models: YangModels | None) -> bool:
    """Corrected copies of what was reported, and what they still have; whether every one could be written."""
    from fabtest.lint.fix import fixed, left, write_fixed
    from fabtest.lint.read import Unreadable, read_config

    every = True
    for name in report.files:
        try:
            file = read_config(Path(name))
        except Unreadable:  # reported already
            continue
        config = fixed(file, [f for f in report.findings if f.file == name])
        if config is None:
            continue
        try:
            copy = write_fixed(file, config)
        except FileProblem as problem:
            err.print(f"fabtest: {problem}")
            every = False
            continue
        rest = sorted({f.rule for f in left(file, config, profile, models)})
        err.print(f"{copy} written" + (f"; for you to decide: {', '.join(rest)}" if rest else ""))
    return every
