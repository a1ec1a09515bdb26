"""Write the sizes of KernelBench's tasks that ship with the package, from checkouts of its versions.

    python .ci/kernelbench_sizes.py CHECKOUT [CHECKOUT ...] [--jobs 2] [--kept] [--only 'level3_9_*']...
    python .ci/kernelbench_sizes.py CHECKOUT --check 10

A checkout is a clone of KernelBench, or a folder with its `KernelBench/level1` to `level3`. What was searched before is
taken from the user's cache, so that an interrupted call goes on where it was. The file holds numbers and our own
sentences, and tasks by the SHA-256 of their text. `--kept` writes what the cache has, and searches for no more.
`--only PATTERN` searches for the sizes of the tasks of these names, and leaves the others' in the file.
`--check N` searches for the sizes of every Nth task again without that cache, compares them with the file, and leaves
with 1 where they differ.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
from pathlib import Path

from kernelforge.evaluation.size_search import Bounds, SizeChooser
from kernelforge.evaluation.size_search import shipped as shipped_sizes
from kernelforge.evaluation.size_search.chooser import choose_all
from kernelforge.evaluation.size_search.shipped import Entry, entry_of, shipped_entries, text_digest, written_entries
from kernelforge.tasks.loaders import ExternalTask, loader_named

LEVELS = (1, 2, 3)

BOUNDS = Bounds(answer_s=900.0, judge_s=3600.0)
"""Those of an import, but for seconds: a network is judged however long that takes."""


def tasks_of(checkout: Path) -> list[ExternalTask]:
    loaded = loader_named("kernelbench").load(checkout)
    return [task for task in loaded.tasks if task.level in LEVELS]


def write(checkouts: list[Path], jobs: int, *, kept: bool, only: list[str]) -> int:
    unsettled = []
    tasks = {text_digest(task): task for checkout in checkouts for task in tasks_of(checkout)}
    searched = {
        digest: task
        for digest, task in tasks.items()
        if not only or any(fnmatch.fnmatchcase(task.name, pattern) for pattern in only)
    }
    entries: dict[str, Entry] = dict(shipped_entries()) if only else {}
    with SizeChooser(bounds=BOUNDS, shipped={}) as chooser:
        if kept:
            searched = {digest: task for digest, task in searched.items() if chooser.is_settled(task)}
        for number, (task, choice) in enumerate(choose_all(chooser, list(searched.values()), jobs), 1):
            print(f"{number} of {len(searched)}: {task.name}: {choice.refused or len(choice.sizes)}", flush=True)
            if chooser.is_settled(task):
                entries[text_digest(task)] = entry_of(task, choice)
            else:
                unsettled.append(task.name)
    path = Path(shipped_sizes.__file__).with_name(shipped_sizes.FILE)
    path.write_text(written_entries(entries), encoding="utf-8")
    print(f"{path}: {len(entries)} tasks, {path.stat().st_size:,} bytes; not settled: {', '.join(unsettled) or 'none'}")
    return 0


def check(checkouts: list[Path], every: int, jobs: int) -> int:
    tasks = [task for checkout in checkouts for task in tasks_of(checkout)][::every]
    different = 0
    with tempfile.TemporaryDirectory() as cache, SizeChooser(Path(cache), BOUNDS, refresh=True) as chooser:
        for task, choice in choose_all(chooser, tasks, jobs):
            same = shipped_entries().get(text_digest(task)) == entry_of(task, choice)
            different += not same
            print(f"{task.name}: {'the same' if same else 'DIFFERENT'}", flush=True)
    print(f"{len(tasks) - different} of {len(tasks)} the same")
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--check", type=int, metavar="N")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    options = parser.parse_args()
    if options.check:
        return check(options.checkouts, options.check, options.jobs)
    return write(options.checkouts, options.jobs, kept=options.kept, only=options.only)


if __name__ == "__main__":
    sys.exit(main())
