"""Tasks that a server offers: of shipped suites, or of suites named at its start."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.errors import UsageError
from kernelforge.records import Task
from kernelforge.tasks.suites import Suite, list_suites, load_suite


class Catalogue:
    """Suites by name, loaded once, so that names in requests never reach the file system.

    Args:
        suites: names or paths; empty for every shipped suite.
        tasks: names of the only tasks to offer, of the first suite.

    Raises:
        UsageError: there is no such suite or task, or two suites have one name.
        TaskError: a suite is malformed.
    """

    def __init__(self, suites: Sequence[str] = (), tasks: Sequence[str] = ()) -> None:
        references = suites or (["core"] if tasks else list_suites())
        loaded = [load_suite(name) for name in references]
        if tasks and len(loaded) > 1:
            raise UsageError("--task chooses among the tasks of one suite; give --suite once")
        self._suites: dict[str, Suite] = {}
        for suite in loaded:
            if suite.name in self._suites:
                raise UsageError(f"two suites are called {suite.name!r}; offer one of them")
            self._suites[suite.name] = suite
        self._references = {suite.name: str(name) for suite, name in zip(loaded, references, strict=True)}
        self._offered = {
            suite.name: {task.name: task for task in suite.tasks if not tasks or task.name in tasks} for suite in loaded
        }
        for name in tasks:
            loaded[0].task(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the suites."""
        return tuple(self._suites)

    @property
    def default(self) -> str:
        """The suite for task names without a suite."""
        return "core" if "core" in self._suites else self.names[0]

    def reference(self, suite: str) -> str:
        """Name or path of the suite, as given at the start."""
        return self._references[suite]

    def suite(self, name: str) -> Suite:
        """
        Raises:
            UsageError: it is not offered.
        """
        if name not in self._suites:
            raise UsageError(f"there is no suite {name[:80]!r} here; suites: {', '.join(self._suites)}")
        return self._suites[name]

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Offered tasks of a suite.

        Raises:
            UsageError: the suite is not offered.
        """
        return tuple(self._offered[self.suite(suite).name].values())

    def task(self, reference: str) -> tuple[Suite, Task]:
        """A task by ``suite/name``, or by its name alone in the default suite.

        Raises:
            UsageError: it is not offered.
        """
        for name, suite in self._suites.items():
            if reference.startswith(f"{name}/") and reference.removeprefix(f"{name}/") in self._offered[name]:
                return suite, self._offered[name][reference.removeprefix(f"{name}/")]
        offered = self._offered[self.default]
        if reference in offered:
            return self._suites[self.default], offered[reference]
        raise UsageError(f"there is no task {reference[:80]!r} here; list_tasks names the offered ones")
