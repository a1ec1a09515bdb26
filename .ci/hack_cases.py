"""Write the case base of reward hacks that ships with the package: ``python .ci/hack_cases.py [--check]``.

Its cases are the candidates of ``tests/adversarial/cases`` in CUDA C++, with the hash of their PTX for sm_90a.
``--check`` changes nothing and fails if the file has other cases.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kernelforge.compile.compiler import Artifact, Compiler  # noqa: E402
from kernelforge.errors import CandidateError  # noqa: E402
from kernelforge.records import Candidate  # noqa: E402
from kernelforge.rewards import hacks  # noqa: E402
from tests.adversarial.corpus import Case, read_cases  # noqa: E402

_LAUNCHED = re.compile(r"(\w+(?:<[\w, ]*>)?)\[[^\]]*\]\(")


def corpus() -> list[tuple[Case, Candidate]]:
    """Cases of the lane of plans with their candidates."""
    cases = [(case, case.candidate()) for case in read_cases() if case.language == "plan"]
    return sorted(cases, key=lambda item: item[0].name)


def ptx_hash(compiler: Compiler, candidate: Candidate) -> str | None:
    """Hash of the PTX of the kernels that the plan names plainly; None where these do not compile."""
    try:
        artifact = compiler.build(candidate.source, list(dict.fromkeys(_LAUNCHED.findall(candidate.plan))))
    except CandidateError:
        return None
    return artifact.build.ptx_hash if isinstance(artifact, Artifact) else artifact.ptx_hash


def main() -> int:
    path = Path(hacks.__file__).with_name(hacks.FILE)
    if "--check" in sys.argv:
        shipped = [(case.name, case.kind, case.source) for case in hacks.shipped_cases()]
        return int(shipped != [(case.name, case.kind, candidate.source) for case, candidate in corpus()])
    rows = []
    with tempfile.TemporaryDirectory() as folder, Compiler(Path(folder)) as compiler:
        for case, candidate in corpus():
            hashed = ptx_hash(compiler, candidate)
            rows.append({"name": case.name, "kind": case.kind, "source": candidate.source, "ptx_hash": hashed})
    path.write_text(json.dumps(rows, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: {len(rows)} cases, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
