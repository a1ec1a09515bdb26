"""``kernelforge package``: a correct attempt as a pip-installable package with a torch operator."""

from __future__ import annotations

import os.path
import shlex
from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.support.options import DEFAULT_RESULTS, ResultsOption, open_store


def package(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="RUN/TASK", help="A task, for its best attempt, or an attempt as RUN/TASK/NUMBER; see 'show'."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="A new or empty folder; written whole or not at all."),
    ],
    licence: Annotated[
        str, typer.Option("--licence", metavar="SPDX", help="Licence of the kernel and the package's own files.")
    ] = "Apache-2.0",
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write a correct attempt as a Python package whose torch operator runs it at the tested shapes."""
    from kernelforge.packaging.project import package as write_package
    from kernelforge.store.references import resolve

    with open_store(results, read_only=True) as store:
        manifest = write_package(store, resolve(store, reference), output, licence)
    sizes = ", ".join(size.name for size in manifest.sizes)
    typer.echo(f"{output}: {manifest.module}, attempt {manifest.provenance.attempt}, tested at {sizes}")
    # pip searches its index for a name without a folder. An absolute path stays what it is.
    folder = os.path.join(os.curdir, output)
    typer.echo(f"install it with: pip install {shlex.quote(folder)}")
