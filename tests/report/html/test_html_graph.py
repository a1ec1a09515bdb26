"""Lineages as rails: chains stay in a column, branches are indented, lines join parents with their children."""

from __future__ import annotations

from kernelforge.report import task_view
from kernelforge.report.html.tables import MOST_COLUMNS, rows
from kernelforge.report.views.task import LineageNode
from tests.report.golden.golden_runs import golden_records

NODE = task_view(golden_records("modelled"), "softmax").lineage[0]


def lineage(*depths: int) -> list[LineageNode]:
    """Nodes in depth-first order."""
    return [NODE.model_copy(update={"number": number, "depth": depth}) for number, depth in enumerate(depths)]


def drawn(*depths: int) -> list[str]:
    """Rows as text: ``|`` a line through, ``*`` an attempt, after ``-`` a branch, ``^`` ``v`` lines up and down."""
    return [
        "".join("|" if through else "." for through in row.rails)
        + ("-" if row.branch else "")
        + "*"
        + ("^" if row.up else "")
        + ("v" if row.down else "")
        for row in rows(lineage(*depths))
    ]


def test_a_chain_is_one_straight_line_however_long():
    assert drawn(0, 1, 2, 3) == ["*v", "*^v", "*^v", "*^"]
    assert {len(row.rails) for row in rows(lineage(*range(500)))} == {0}


def test_what_was_tried_beside_the_last_child_is_a_branch():
    assert drawn(0, 1, 1, 1) == ["*v", "|-*", "|-*", "*^"]


def test_a_branch_has_children_of_its_own():
    assert drawn(0, 1, 2, 2, 1) == ["*v", "|-*v", "||-*", "|*^", "*^"]


def test_seeds_are_not_joined():
    assert drawn(0, 0, 1, 0) == ["*", "*v", "*^", "*"]


def test_a_deep_tree_of_branches_stays_on_the_page():
    depths = [*range(30), *range(29, 0, -1)]
    made = rows(lineage(*depths))
    assert max(len(row.rails) for row in made) == MOST_COLUMNS
    assert [row.node.number for row in made] == list(range(len(depths)))


def test_no_lineage_has_no_rows():
    assert rows([]) == []
