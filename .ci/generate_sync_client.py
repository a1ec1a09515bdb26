"""Generate the synchronous client from the asynchronous one: ``python .ci/generate_sync_client.py [--check]``.

The two clients share all behaviour through ``kernelforge/client/flow.py`` and ``bulk.py``; the public methods are
written once, in ``async_client.py``. ``--check`` changes nothing and fails if the generated file is out of date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "kernelforge" / "client"
SOURCE, TARGET = CLIENT / "async_client.py", CLIENT / "sync_client.py"

REPLACEMENTS = (
    (
        r'"""Asynchronous client of the reward server\.\n\n.*?"""',
        '"""Synchronous, thread-safe client of the reward server.\n\nGenerated from ``async_client.py`` by '
        '``python .ci/generate_sync_client.py``; do not edit.\n"""',
    ),
    (
        r"Any number of asyncio tasks and event loops may share one",
        "Any number of threads and forked children may share one",
    ),
    (r"Cancelling the call", "Ctrl-C"),
    (r"of this event loop", "of this process"),
    (r"AsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
    (r"AsyncGenerator", "Generator"),
    (r"AsyncTransport", "SyncTransport"),
    (r"Async(Client|Conversation)", r"\1"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r" *>>> import asyncio\n", ""),
    (r"asyncio\.run\((.*)\)", r"\1"),
)


def generated() -> str:
    """The text of the synchronous client."""
    text = SOURCE.read_text()
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL if ".*?" in pattern else 0)
    for command in (["check", "--fix", "--select", "I"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    """Write the generated client, or check that it is current."""
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != generated():
            sys.exit(f"{TARGET} is out of date: run 'python .ci/generate_sync_client.py'")
    else:
        TARGET.write_text(generated())


if __name__ == "__main__":
    main()
