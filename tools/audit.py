"""Ask for the security advisories of pinned versions: every version is accounted for, checked or not.

    python tools/audit.py constraints.txt constraints-highest.txt

Needs pip-audit in the same environment (``pip install pip-audit``).  Where nothing can be looked up, pip-audit itself
says "No known vulnerabilities found"; this says that nothing was checked.  Ends with 1 if a version has a known
vulnerability, with 0 if none has or if no advisories could be reached, and with 2 if a file can't be read.  A finding
that doesn't concern edgefl goes into ``EXPLAINED`` with the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

SERVICES = ("pypi", "osv")
EXPLAINED: dict[str, str] = {}
"""Why a finding isn't mended, by its id."""


def asked(service: str, file: str) -> dict[str, Any] | str:
    """pip-audit's report of the versions in ``file`` from this service, or the last line of why there is none."""
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", service, "--format", "json", "--aliases"]
    command += ["--progress-spinner", "off", "--no-deps", "--disable-pip", "--requirement", file]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return next(reversed(done.stderr.splitlines()), "it said nothing")
    return report


def told(report: Mapping[str, Any], explained: Mapping[str, str]) -> tuple[list[str], int, int]:
    """What to print of a report, the number of versions that were checked, and of findings without an explanation."""
    checked = [each for each in report["dependencies"] if "skip_reason" not in each]
    skipped = sorted(each["name"] for each in report["dependencies"] if "skip_reason" in each)
    lines, findings = [], 0
    for each in checked:
        for found in each["vulns"]:
            reason = next((explained[i] for i in (found["id"], *found["aliases"]) if i in explained), None)
            findings += reason is None
            mended = f"mended in {', '.join(found['fix_versions'])}" if found["fix_versions"] else "not mended yet"
            lines.append(f"{each['name']} {each['version']}: {found['id']}, {reason or mended}")
    if checked and skipped:
        lines.append(f"no advisories could be looked up for: {', '.join(skipped)}")
    return lines, len(checked), findings


def audit(file: str) -> bool:
    """Print what is known of the versions in ``file``; whether each finding is explained."""
    for service in SERVICES:
        report = asked(service, file)
        if isinstance(report, str):
            continue
        lines, checked, findings = told(report, EXPLAINED)
        if checked:
            print(
                f"{file}: {checked} of {len(report['dependencies'])} versions checked, {findings} findings",
                *lines,
                sep="\n",
            )
            return not findings
    print(f"{file}: NOT CHECKED: no advisories could be reached for any of its versions")
    return True


def main(files: list[str]) -> int:
    """The exit code."""
    if not files:
        print("give the files to check, such as constraints.txt", file=sys.stderr)
        return 2
    for file in files:
        try:
            open(file).close()
        except OSError as error:
            print(f"can't read {file}: {error.strerror}", file=sys.stderr)
            return 2
    clean = [audit(file) for file in files]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    from measuring import parser_of

    parser = parser_of(__doc__)
    parser.add_argument("files", nargs="*", help="files of pinned versions, such as constraints.txt")
    sys.exit(main(parser.parse_args().files))
