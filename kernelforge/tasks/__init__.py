"""Task files, suites and sizes. Everything here reads text; nothing imports or runs a task."""

from kernelforge.tasks.constants import evaluate_expression, module_constants, substitute
from kernelforge.tasks.files import TaskFile, parse_task_file
from kernelforge.tasks.suites import Suite, data_path, list_suites, load_suite, load_task, size_source, suite_folders

__all__ = [
    "Suite",
    "TaskFile",
    "data_path",
    "evaluate_expression",
    "list_suites",
    "load_suite",
    "load_task",
    "module_constants",
    "parse_task_file",
    "size_source",
    "substitute",
    "suite_folders",
]
