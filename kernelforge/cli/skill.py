"""``kernelforge skill``: instructions for coding agents, in the Agent Skills format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.support.options import console

app = typer.Typer(no_args_is_help=True, help="Teach a coding agent to use KernelForge.")


class Agent(StrEnum):
    """Values of ``--agent``."""

    CLAUDE = "claude"
    CODEX = "codex"


FOLDERS = {Agent.CLAUDE: ".claude/skills", Agent.CODEX: ".agents/skills"}
"""Where agents look for skills, in a project and in a home folder. ``.agents/skills`` is the format's common place."""


@app.command("install", short_help="Write the skill where an agent looks for it.")
def install(
    agent: Annotated[
        Agent, typer.Option("--agent", help="claude: .claude/skills. codex, and most others: .agents/skills.")
    ] = Agent.CLAUDE,
    user: Annotated[bool, typer.Option("--user", help="In your home folder, for all projects.")] = False,
    folder: Annotated[Path | None, typer.Option("--folder", metavar="FOLDER", help="Another folder of skills.")] = None,
) -> None:
    """Write SKILL.md and its references into a folder of skills; an earlier version of it is replaced."""
    from kernelforge.agents.prompting.skill import NAME, install_skill

    skills = folder or (Path.home() if user else Path.cwd()) / FOLDERS[agent]
    written = install_skill(skills)
    size = sum(path.stat().st_size for path in written)
    console().print(f"{skills / NAME}: {len(written)} files, {size:,} bytes")
