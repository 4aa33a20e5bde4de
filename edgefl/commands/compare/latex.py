"""A comparison of runs as a table for LaTeX, with the package booktabs."""

from __future__ import annotations

from edgefl.commands.compare.answer import ComparedRuns
from edgefl.commands.compare.table import best_words, columns_of, heading_of, labels_of
from edgefl.errors import visible

ESCAPED = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "\"": r"\textquotedbl{}",
}  # fmt: skip
"""Characters that mean something else in the text of LaTeX."""


def comparison_latex(result: ComparedRuns, *, full: bool = False) -> str:
    """The table that ``print_comparison`` begins with: a row for each group of runs, the best of a column in bold.

    A row is best by the rule of ``edgefl bench``: ahead of each other one beyond chance.
    """
    confidence = result.spread != "standard deviation"
    columns = columns_of(result, full=full)
    heads = [column.title.split("\n") for column in columns]
    deep = max((len(head) for head in heads), default=1)
    lines = [f"% {visible(heading_of(result.rows, confidence=confidence))}",
             f"% bold: {best_words(result.rows)}; needs booktabs",
             rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"  \toprule"]  # fmt: skip
    for level in range(deep):
        cells = [_text(head[at]) if (at := level - deep + len(head)) >= 0 else "" for head in heads]
        lines.append(f"  {' & '.join(['', *cells])} \\\\")
    lines.append(r"  \midrule")
    texts = [column.texts(confidence=confidence) for column in columns]
    for index, label in enumerate(labels_of(result.rows)):
        cells = [_number(of[index], best=column.cells[index].best) for column, of in zip(columns, texts, strict=True)]
        lines.append(f"  {' & '.join([_text(label), *cells])} \\\\")
    return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}", ""])


def _text(words: str) -> str:
    return "".join(ESCAPED.get(letter, letter) for letter in visible(words))


def _number(text: str, *, best: bool) -> str:
    """A cell of the console's table: numbers in mathematics, words as they are."""
    text = text.rstrip("* ")
    if not any(letter.isdigit() for letter in text):
        return _text(text)
    number = text.replace("±", r"\pm")
    return rf"$\mathbf{{{number}}}$" if best else f"${number}$"
