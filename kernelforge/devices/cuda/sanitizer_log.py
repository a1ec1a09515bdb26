"""What compute-sanitizer writes: reports of a few lines each, and a summary.

Formats are those of NVIDIA's Compute Sanitizer manual ("Understanding Memcheck Errors", "Racecheck", "Initcheck",
"Synccheck"), of the versions from 2022 on, which place ``at`` lines differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PREFIX = "========="
_MAX_LINE, _MAX_REST, MAX_FINDINGS = 2048, 24, 64
"""More of a line, of a report, or of reports is not read: patterns that look for names take the square of a length."""
_FINDINGS = re.compile(
    r"(?:Potential )?[Ii]nvalid __\w+__ |Uninitialized "
    r"|(?:(?:ERROR|WARNING|Error|Warning): )?(?:\([^)]*\) )?(?:Race reported|Potential \w+ hazard)"
    r"|Barrier error|Barrier called|Syncwarp called|Deadlock detected|Malloc/Free error|Stack |Hardware |Warp "
    r"|Program hit CUDA_ERROR_|Tensor Memory |Misaligned "
)
_SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: (\d{1,12}) (?:error|hazard)")
_TROUBLE = re.compile(
    r"Target application terminated before|Internal Sanitizer Error|Unable to|Device not supported"
    r"|No attachable process|Error: (?!process didn't)"
)
_AT = re.compile(
    r"\bat (?:(?P<early>0x[0-9a-f]+) in (?P<file0>[^:]+):(?P<line0>\d{1,9}):(?P<kernel0>.+)"
    r"|(?P<kernel>[^\s+][^+]*?)(?:\+|:)0x[0-9a-f]+(?: in (?P<file>.+?):(?P<line>\d{1,9}))?)(?: \[\d+ hazards\])?\s*\Z"
)
_BY = re.compile(r"by thread (\(\d+,\d+,\d+\)) in block (\(\d+,\d+,\d+\))")
_ADDRESS = re.compile(r"(?:Address|__shared__) (0x[0-9a-f]+)")


@dataclass(frozen=True)
class Finding:
    """One report of compute-sanitizer."""

    what: str
    """Its first line: ``Invalid __global__ write of size 4 bytes``."""
    detail: str = ""
    """What it says of the address: ``Address 0x... is out of bounds and is ...``."""
    kernel: str | None = None
    """As the tool names it: mangled, where it was started so."""
    file: str | None = None
    line: int | None = None
    address: int | None = None
    thread: str | None = None
    block: str | None = None


@dataclass(frozen=True)
class SanitizerLog:
    """A whole log."""

    findings: tuple[Finding, ...]
    errors: int | None
    """Of its summary; None where it has none: the tool did not come to its end."""
    trouble: str | None
    """What the tool says of itself: it could not do its work."""


def parse_log(text: str) -> SanitizerLog:
    """Read a log, whatever of it there is."""
    findings: list[Finding] = []
    errors: int | None = None
    trouble: str | None = None
    for first, rest in _reports(text):
        summary = _SUMMARY.search(first)
        if summary:
            errors = (errors or 0) + int(summary[2])
        elif _FINDINGS.match(first) and len(findings) < MAX_FINDINGS:
            findings.append(_finding(first, rest))
        elif _TROUBLE.match(first) and trouble is None:
            trouble = first
    return SanitizerLog(tuple(findings), errors, trouble)


def _reports(text: str) -> Iterator[tuple[str, list[str]]]:
    """First line and indented lines of every report."""
    first: str | None = None
    rest: list[str] = []
    for line in text.splitlines():
        line = line[:_MAX_LINE].strip("\r")
        at = line.find(_PREFIX)
        if at not in (0, 1):
            continue
        said = line[at + len(_PREFIX) :]
        if said.startswith("     ") and first is not None:
            rest += [said.strip()] if len(rest) < _MAX_REST else []
            continue
        if first is not None:
            yield first, rest
        first, rest = (said.strip() or None), []
    if first is not None:
        yield first, rest


def _finding(first: str, rest: list[str]) -> Finding:
    at = next((match for line in (first, *rest) if (match := _AT.search(line))), None)
    by = next((match for line in rest if (match := _BY.search(line))), None)
    address = next((match for line in (first, *rest) if (match := _ADDRESS.search(line))), None)
    told = [line for line in rest if line.startswith(("Address", "and ", "Current Value", "Sync mask"))]
    named = {} if at is None else at.groupdict()
    line = named.get("line") or named.get("line0")
    return Finding(
        what=first[:300],
        detail=" ".join(told)[:400],
        kernel=named.get("kernel") or named.get("kernel0"),
        file=named.get("file") or named.get("file0"),
        line=int(line) if line else None,
        address=int(address[1], 16) if address else None,
        thread=by[1] if by else None,
        block=by[2] if by else None,
    )
