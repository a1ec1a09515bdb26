"""KernelBench's files as tasks: a checkout, a folder, one file; what is no task is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.tasks.loaders import loader_for, loader_named
from tests.support import kernelbench_files as files

LOADER = loader_named("kernelbench")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return files.write_checkout(tmp_path, files.GOOD | files.BAD)


def test_every_problem_is_a_task_or_listed_with_a_reason(checkout: Path) -> None:
    result = LOADER.load(checkout)
    assert len(result.tasks) + len(result.not_loaded) == len(files.GOOD | files.BAD)
    reasons = {item.origin: item.reason for item in result.not_loaded}
    assert reasons == {
        "level1/2_Broken.py": "line 2: expected ':'",
        "level4/1_Fetches.py": (
            "it takes a model from the network with transformers; the oracle that runs references has none"
        ),
    }
    assert {item.level for item in result.not_loaded} == {1, 4}


def test_names_titles_levels_and_order_follow_the_files(checkout: Path) -> None:
    result = LOADER.load(checkout)
    assert [task.name for task in result.tasks] == [
        "level1_4_random",
        "level1_5_raises",
        "level1_23_softmax",
        "level1_35_groupnorm",
        "level1_95_crossentropyloss",
        "level2_1_linear_inline",
        "level2_2_casts",
        "level3_1_huge",
    ]
    (softmax,) = [task for task in result.tasks if task.name == "level1_23_softmax"]
    assert (softmax.title, softmax.level, softmax.origin) == ("Softmax", 1, "level1/23_Softmax.py")
    assert softmax.source == files.SOFTMAX


def test_a_folder_of_problems_and_one_file_are_sources_too(checkout: Path) -> None:
    folder = checkout / "KernelBench" / "level2"
    task = LOADER.load(folder).tasks[0]
    assert (task.name, task.level) == ("level2_1_linear_inline", 2)
    (second,) = LOADER.load(folder / "1_Linear_Inline.py").tasks
    assert second.source == task.source


def test_an_argmax_may_choose_among_equals(tmp_path: Path) -> None:
    (tmp_path / "51_Argmax.py").write_text(files.ARGMAX)
    (task,) = LOADER.load(tmp_path).tasks
    assert task.policy.ties == (0,)


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = files.write_checkout(tmp_path / "a", {"level1/1_A.py": files.SOFTMAX}) / "KernelBench" / "level1"
    (folder / "2_B.py").symlink_to(folder / "1_A.py")
    result = LOADER.load(tmp_path / "a")
    assert [item.reason for item in result.not_loaded] == ["it is no plain file"]


def test_the_format_is_recognised_by_its_files(checkout: Path, tmp_path: Path) -> None:
    assert loader_for(checkout).name == "kernelbench"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="no known format"):
        loader_for(empty)
    with pytest.raises(UsageError, match="neither level1 to level4"):
        LOADER.load(empty)
    with pytest.raises(UsageError, match="there is no"):
        loader_for(tmp_path / "absent")
    with pytest.raises(UsageError, match="there is no format 'x'"):
        loader_named("x")
