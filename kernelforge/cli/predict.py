"""``kernelforge predict``: predicted times and energies of a matrix product by its tiles."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.support.options import JsonOption, UnconfinedOption, print_view


def predict(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of A and of the product.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns of B and of the product.")],
    k: Annotated[int, typer.Argument(metavar="K", help="Columns of A, rows of B.")],
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="An emulated device.")] = "emulated:h100",
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict the time and the energy of an FP32 matrix product for each choice of tiles, the fastest first."""
    from kernelforge.report.terminal.predict import product_lines
    from kernelforge.tiles import predict_product

    def tell(line: str) -> None:
        typer.echo(line, err=True)

    prediction = predict_product(m, n, k, device=device, allow_unconfined=allow_unconfined, tell=tell)
    print_view(prediction, product_lines, as_json=as_json)
