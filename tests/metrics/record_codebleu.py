"""Record what the package ``codebleu`` 0.7 says of texts in C and C++: ``codebleu_package.json``.

    python -m tests.metrics.record_codebleu

The package pins tree-sitter below 0.23, whose grammars do not fit newer ones. Install it without its dependencies, so
that both sides parse with the same grammar: ``pip install --no-deps codebleu==0.7.0``.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("codebleu_package.json")

TEXTS = (
    """
float dot(const float *x, const float *y, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; i++) { sum += x[i] * y[i]; }  // in order
  return sum;
}
""",
    """
float inner(const float *left, const float *right, int count) {
  float total;
  int at = 0;
  total = 0.0f;
  while (at < count) { total = total + left[at] * right[at]; at = at + 1; }
  return total;
}
""",
    """
void relu(float *x, int n) {
  int i;
  for (i = 0; i < n; ++i) { if (x[i] < 0) x[i] = 0; else x[i] = x[i] * 1; }
}
""",
    """
/* Largest common divisor. */
unsigned gcd(unsigned a, unsigned b) {
  unsigned t;
  do { t = a % b; a = b; b = t; } while (b != 0);
  return a;
}
""",
    """
int classify(int code) {
  int kind = code;
  switch (code) { case 1: kind = 10; break; case 2: kind = code * 2; break; default: kind = -1; }
  if (kind > 5) { kind = kind - 1; } else if (kind < 0) { kind = 0; }
  return kind;
}
""",
    "int one() { return 1; }",
)


def record() -> None:
    from codebleu import calc_codebleu

    rows = []
    for language in ("c", "cpp"):
        for candidate in range(len(TEXTS)):
            for references in ([0], [1], [2], [3], [4], [0, 1], [4, 2, 3]):
                scores = calc_codebleu([[TEXTS[at] for at in references]], [TEXTS[candidate]], language)
                rows.append({"language": language, "candidates": [candidate], "references": [references], **scores})
        corpus = [[1], [0, 3], [2], [4], [3], [0]]
        scores = calc_codebleu([[TEXTS[at] for at in group] for group in corpus], list(TEXTS), language)
        rows.append({"language": language, "candidates": list(range(len(TEXTS))), "references": corpus, **scores})
    FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    record()
