"""``kernelforge notes``: search the optimisation notes, of which a Judge is given some."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.support.options import JsonOption, console, print_json
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.agents.diagnosis.diagnose import Note

app = typer.Typer(help="Search the optimisation notes.", no_args_is_help=True, rich_markup_mode=None)


@app.command("find")
def find(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Words, or their beginnings; a note has to have all of them."),
    ] = None,
    bottleneck: Annotated[
        str | None, typer.Option("--bottleneck", metavar="NAME", help="Only notes about this bottleneck.")
    ] = None,
    operator: Annotated[
        str | None,
        typer.Option("--operator", metavar="FAMILY", help="Only notes that suit this operator family."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="Only what this GPU has: emulated:h100, or the driver's name."),
    ] = None,
    arch: Annotated[
        str | None, typer.Option("--arch", metavar="VERSION", help="Only what GPUs of this kind have: 9.0, or sm_90.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Print at most this many notes.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Find notes by words, bottleneck, operator and GPU, the best match first; each names its source.

    The exit code is 1 if there is none.
    """
    from pydantic import RootModel

    from kernelforge.agents.diagnosis.diagnose import search_notes
    from kernelforge.agents.diagnosis.rules import Bottleneck
    from kernelforge.records.task import FAMILIES, OTHER_FAMILY

    if device is not None and arch is not None:
        raise UsageError("--device and --arch both name a GPU; leave one of them out")
    named = None if bottleneck is None else Bottleneck(_one_of("bottleneck", bottleneck, [*map(str, Bottleneck)]))
    family = None if operator is None else _one_of("operator", operator, (*FAMILIES, OTHER_FAMILY))
    capability = _capability(arch) if arch is not None else _device_capability(device) if device is not None else None
    notes = search_notes(words or (), named, family, capability)
    if as_json:
        rows = [note.model_dump(mode="json") for note in notes[:limit]]
        print_json(RootModel[dict[str, Any]]({"total": len(notes), "notes": rows}))
    else:
        for note in notes[:limit]:
            _print_note(note)
        if len(notes) > limit:
            console().print(f"{len(notes) - limit} more; --limit {len(notes)} prints all", soft_wrap=True)
    if not notes:
        typer.echo("no note has all of that; leave out a word or an option", err=True)
        raise typer.Exit(1)


def _print_note(note: Note) -> None:
    out = console()
    (first, last), operators = note.capabilities, ", ".join(note.families)
    parts = [", ".join(note.bottlenecks), *([operators] if operators else [])]
    if note.capabilities != type(note).model_fields["capabilities"].default:
        upper = "" if last == first else " on" if last[0] == 99 else f" to {last[0]}.{last[1]}"
        parts.append(f"compute capability {first[0]}.{first[1]}{upper}")
    if note.dtypes:
        parts.append(f"tensors of {', '.join(note.dtypes)}")
    out.print(note.title, style="bold", soft_wrap=True)
    out.print(f"  {note.text}", soft_wrap=True)
    out.print(f"  {'; '.join(parts)}", soft_wrap=True)
    out.print(f"  {note.source}\n", soft_wrap=True)


def _one_of(kind: str, name: str, names: Collection[str]) -> str:
    """A name that exists, with ``_`` and a space taken as ``-``.

    Raises:
        UsageError: there is none of that name.
    """
    spelt = re.sub(r"[\s_]+", "-", name.strip().lower())
    if spelt in names:
        return spelt
    close = get_close_matches(spelt, names, 2, 0.6)
    advice = f"did you mean {' or '.join(close)}?" if close else f"they are: {', '.join(names)}"
    raise UsageError(f"there is no {kind} '{name[:80]}'; {advice}")


def _capability(arch: str) -> tuple[int, int]:
    """Compute capability of ``9.0``, ``sm_90`` or ``sm_90a``."""
    parts = re.fullmatch(r"(\d{1,2})\.(\d)|(?:sm_?)?(\d{1,2})(\d)[af]?", arch.strip().lower())
    if parts is None:
        raise UsageError(f"--arch takes a compute capability such as 9.0 or sm_90, not '{arch[:80]}'")
    return int(parts[1] or parts[3]), int(parts[2] or parts[4])


def _device_capability(name: str) -> tuple[int, int]:
    """Compute capability of a GPU by the name of its emulated device, or by the driver's name."""
    from kernelforge.hardware.specs import EMULATED, SPECS, find_spec

    spec = find_spec(name) or find_spec(EMULATED + name)
    if spec is None:
        close = get_close_matches(name.lower().removeprefix(EMULATED), SPECS, 3, 0.6)
        names = " or ".join(EMULATED + key for key in close) if close else f"{EMULATED}h100"
        advice = f"did you mean {names}?" if close else f"take a name such as {names}, or --arch 9.0"
        raise UsageError(f"there are no figures of a GPU '{name[:80]}'; {advice}")
    return spec.compute_capability
