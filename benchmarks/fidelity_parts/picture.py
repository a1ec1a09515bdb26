"""A picture of modelled against measured times, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

SIZE, MARGIN = 480, 48
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")


def scatter(points: Sequence[tuple[str, float, float]]) -> str:
    """One dot per launch: GPU, measured and modelled time in microseconds; with lines for equal and for twofold."""
    least = math.floor(math.log10(min(min(x, y) for _, x, y in points)))
    most = math.ceil(math.log10(max(max(x, y) for _, x, y in points)))
    span = SIZE - 2 * MARGIN

    def at(value: float) -> float:
        return (math.log10(value) - least) / (most - least) * span

    gpus = list(dict.fromkeys(gpu for gpu, *_ in points))
    colours = {gpu: COLOURS[k % len(COLOURS)] for k, gpu in enumerate(gpus)}
    height = SIZE + 14 * math.ceil(len(gpus) / 2) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {height}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{SIZE}" height="{height}" fill="white"/>',
    ]
    for factor, dash in ((1.0, ""), (2.0, ' stroke-dasharray="4 3"'), (0.5, ' stroke-dasharray="4 3"')):
        shift = math.log10(factor) / (most - least) * span
        x1, x2 = max(0.0, -shift), min(span, span - shift)
        parts.append(
            f'<line x1="{MARGIN + x1:.1f}" y1="{SIZE - MARGIN - x1 - shift:.1f}" x2="{MARGIN + x2:.1f}" '
            f'y2="{SIZE - MARGIN - x2 - shift:.1f}" stroke="#888"{dash}/>'
        )
    for power in range(least, most + 1):
        distance = at(10.0**power)
        label = f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"
        parts.append(f'<text x="{MARGIN + distance:.1f}" y="{SIZE - MARGIN + 14}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{MARGIN - 5}" y="{SIZE - MARGIN - distance + 3:.1f}" text-anchor="end">{label}</text>')
    for gpu, measured, modelled in points:
        parts.append(
            f'<circle cx="{MARGIN + at(measured):.1f}" cy="{SIZE - MARGIN - at(modelled):.1f}" r="2.2" '
            f'fill="{colours[gpu]}" fill-opacity="0.7"/>'
        )
    parts.append(f'<text x="{SIZE / 2}" y="{SIZE - 12}" text-anchor="middle">measured, µs</text>')
    parts.append(
        f'<text x="12" y="{SIZE / 2}" transform="rotate(-90 12 {SIZE / 2})" text-anchor="middle">modelled, µs</text>'
    )
    for number, gpu in enumerate(gpus):
        x, y = 12 + number % 2 * SIZE / 2, SIZE + 4 + 14 * (number // 2)
        parts.append(f'<circle cx="{x}" cy="{y - 3}" r="3" fill="{colours[gpu]}"/>')
        parts.append(f'<text x="{x + 8}" y="{y}">{gpu}</text>')
    return "\n".join((*parts, "</svg>\n"))
