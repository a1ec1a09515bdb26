"""Check a commit message: `area: verb ...` in at most 72 characters, a blank line, and a body that says why.

Git hands the hook the file that holds the message: python .ci/commit_message.py FILE
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONGEST_SUBJECT = 72
SUBJECT = re.compile(r"[a-z][\w./-]*(, [a-z][\w./-]*)*: [a-z]\S*( \S+)+")
"""One area or several, and a sentence that begins with a verb."""


def problems(message: str) -> list[str]:
    """Rules that the message breaks, one sentence each. Merge and revert commits are left alone."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject, body = (lines or [""])[0], [line for line in lines[1:] if line.strip()]
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return []
    broken = []
    if not SUBJECT.fullmatch(subject):
        broken.append('the subject is not of the form "area: verb ...", such as "store: lock runs before they show"')
    if subject.endswith("."):
        broken.append("the subject ends with a full stop")
    if len(subject) > LONGEST_SUBJECT:
        broken.append(f"the subject has {len(subject)} characters, more than {LONGEST_SUBJECT}")
    if len(lines) > 1 and lines[1].strip():
        broken.append("the second line is not blank")
    if not body:
        broken.append("there is no body that says why")
    return broken


def main(arguments: list[str]) -> int:
    """Print each broken rule; the status is 1 if there is one."""
    if len(arguments) != 1:
        print("usage: python .ci/commit_message.py FILE", file=sys.stderr)
        return 2
    broken = problems(Path(arguments[0]).read_text(encoding="utf-8"))
    for rule in broken:
        print(f"commit message: {rule}", file=sys.stderr)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
