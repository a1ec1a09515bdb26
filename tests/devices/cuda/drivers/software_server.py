"""Runs scripts, one after the other, each in a fork of a process that has its imports: ``python software_server.py``.

A script comes as one line of JSON; what comes back is one line with its ``answer`` or its ``error``.
"""

import importlib.util
import json
import os
import sys
import traceback
from typing import Any

WARM = (
    "cuda.bindings.driver",
    "cupy",
    "kernelforge.devices.cuda.worker.bindings_driver",
    "kernelforge.devices.cuda.discovery",
)


def answer(script: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"answer": None}
    try:
        exec(script, scope)
    except Exception:
        return {"error": traceback.format_exc()}
    return {"answer": scope["answer"]}


def main() -> None:
    for module in WARM:
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            importlib.import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            print(json.dumps(answer(json.loads(line))), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(json.dumps({"error": f"the child ended with status {status}"}), flush=True)


if __name__ == "__main__":
    main()
