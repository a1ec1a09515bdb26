"""The page of a user's own kernel on the emulated device: one file that loads nothing else."""

from __future__ import annotations

from markupsafe import Markup

from kernelforge.report.formatting import format_energy
from kernelforge.report.html.rendering import STYLE, assets, environment, policy
from kernelforge.report.html.tables import html_table
from kernelforge.report.tables.emulation import line_table, opcode_table, tensor_table
from kernelforge.report.tables.task import kernel_table, metric_table
from kernelforge.report.views.emulation import EmulationView
from kernelforge.report.views.task import profile_metrics
from kernelforge.version import __version__


def emulation_page(view: EmulationView, *, title: str) -> str:
    """The page as a complete document.

    Args:
        view: The run.
        title: Name of the kernel's file.
    """
    style = assets()[STYLE].read_text()
    metrics = profile_metrics(view.profile) if view.profile is not None else ()
    energy = view.profile.energy if view.profile is not None else None
    tables = [
        kernel_table(view.build.kernels) if view.build.kernels else None,
        tensor_table(view.tensors) if view.tensors else None,
        metric_table(metrics, title="Counters", compared=False) if metrics else None,
        opcode_table(view.opcodes) if view.opcodes else None,
    ]
    return (
        environment()
        .get_template("emulation.html.j2")
        .render(
            view=view,
            title=title,
            policy=policy(styles=(style,)),
            style=Markup(style),
            tables=[html_table(table) for table in tables if table is not None],
            energy=None if energy is None else format_energy(energy),
            lines=html_table(line_table(view.lines)) if view.lines else None,
            version=__version__,
        )
    )
