"""Resources: pages, notes, tasks and schemas of answers, for clients whose model or user reads them by address."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError

from kernelforge.agents.prompting.render import shipped_page
from kernelforge.agents.prompting.skill import skill_files, without_links

SCHEME = "kernelforge://"
MARKDOWN = "text/markdown"
_SECTIONS = "references/launch-plan/"
_NOTES = "references/notes/"


def add_resources(server: MCPServer[object], read_task: Callable[[Context, str], Awaitable[str]]) -> None:
    """Offer the pages of this installation, and tasks.

    Args:
        server: gets the resources.
        read_task: gives the text of a task by its reference, as ``show_task`` does.
    """
    files = skill_files()
    sections, notes = _names(files, _SECTIONS), _names(files, _NOTES)

    @server.resource(f"{SCHEME}docs/launch-plan", title="Launch plans", mime_type=MARKDOWN)
    async def launch_plan() -> str:
        """The language of launch plans, the whole page."""
        return without_links(shipped_page("launch-plan.md"))

    @server.resource(f"{SCHEME}docs/diagnosis", title="Diagnosis", mime_type=MARKDOWN)
    async def diagnosis() -> str:
        """Bottlenecks of a kernel, with the counters and thresholds that show them."""
        return files["references/diagnosis.md"]

    @server.resource(f"{SCHEME}docs/metrics", title="Metrics", mime_type=MARKDOWN)
    async def metrics() -> str:
        """Metrics of a profile: what they count, their units and origins."""
        return files["references/metrics.md"]

    @server.resource(
        f"{SCHEME}docs/launch-plan/{{section}}",
        title="A section about launch plans",
        description=f"One section of the language of launch plans: {', '.join(sections)}.",
        mime_type=MARKDOWN,
    )
    async def launch_plan_section(section: str) -> str:
        return _file(files, _SECTIONS, section)

    @server.resource(
        f"{SCHEME}notes/{{bottleneck}}",
        title="Optimisation notes",
        description=f"What to do against a bottleneck, with sources: {', '.join(notes)}.",
        mime_type=MARKDOWN,
    )
    async def notes_about(bottleneck: str) -> str:
        return _file(files, _NOTES, bottleneck)

    @server.resource(f"{SCHEME}tasks/{{suite}}/{{name}}", title="A task", mime_type=MARKDOWN)
    async def task(suite: str, name: str, ctx: Context) -> str:
        """A task as a Coder sees it, named as list_tasks does: what show_task gives as `prompt`."""
        return await read_task(ctx, f"{suite}/{name}")

    @server.resource(f"{SCHEME}answers/{{tool}}", title="Schema of an answer", mime_type="application/schema+json")
    async def answer(tool: str) -> str:
        """The complete JSON schema of a tool's answer."""
        for listed in await MCPServer.list_tools(server):
            if listed.name == tool:
                return json.dumps(listed.output_schema, indent=1)
        raise ResourceNotFoundError(f"there is no tool {tool[:80]!r}")


def _names(files: dict[str, str], folder: str) -> list[str]:
    return [path.removeprefix(folder).removesuffix(".md") for path in files if path.startswith(folder)]


def _file(files: dict[str, str], folder: str, name: str) -> str:
    """
    Raises:
        ResourceNotFoundError: there is no such file.
    """
    text = files.get(f"{folder}{name}.md")
    if text is None:
        raise ResourceNotFoundError(f"there is no {name[:80]!r}; there are: {', '.join(_names(files, folder))}")
    return text
