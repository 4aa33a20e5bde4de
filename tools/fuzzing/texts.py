"""Strategies of mutations of a file's bytes: lines, numbers, snippets, encodings, truncation, odd files."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from fuzzing.case import FOLDER, LINK, PIPE, Content, Odd

LAUGHS = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + i, 98 + i, b", ".join([b"*%c" % (97 + i)] * 9)) for i in range(9)
)
"""A few anchors that stand for 10^9 values."""

SNIPPETS: tuple[bytes, ...] = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\x80", b"\r", b"\t", b"\x0c", b"\x1a", b"\x85", b"\xe2\x80\xa8",
    b"\xe2\x80\xae", b"\xc2\x9b", b"\\u001b[2J", b"'",
    b'"', b":", b": ", b"- ", b"#", b"{", b"}", b"[", b"]", b",", b"|", b"&a ", b"*a", b"<<: *a",
    b"!!python/object:os.system ",
    b"!x ", b"---\n", b"...\n", b"%YAML 9.9\n", b"? ", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000,
    b"--5", b"\xd9\xa3", b"null", b"[" * 2000, b"{" * 2000, b"[" * 50000, b'{"a":' * 5000, b"x" * 200_000, b"\n" * 1000,
    b'"unclosed', b"=cmd()", b"../../x", b"/dev/zero", LAUGHS,
)  # fmt: skip

NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
HUGE = (b"0", b"-1", b"1000000000000", b"1e308", b"1e999", b"9" * 60, b"9" * 5000, b"NaN", b"-0", b"0.1", b"1.5", b"")


@st.composite
def rewritten(draw: st.DrawFn, content: bytes, most: int = 2) -> bytes:
    """The bytes of a file with one to ``most`` changes."""
    for _ in range(draw(st.integers(1, most))):
        how = draw(
            st.sampled_from(
                ("insert", "cut", "number", "number", "line away", "line twice", "lines swapped", "end", "doubled",
                 "empty", "byte", "indent")
            )
        )  # fmt: skip
        if how == "empty":
            content = draw(st.sampled_from((b"", b"\n", b"[]", b"{}", b"null", b"0", b'""', b"\x00" * 64, *SNIPPETS)))
            continue
        at = draw(st.integers(0, len(content)))
        if how == "insert":
            content = content[:at] + draw(st.sampled_from(SNIPPETS)) + content[at:]
        elif how == "cut":
            content = content[:at] + content[at + draw(st.integers(1, 40)) :]
        elif how == "byte":
            content = content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
        elif how == "end":
            content = content[:at]
        elif how == "doubled":
            content = content * 2
        elif how == "number":
            spans = [found.span() for found in NUMBER.finditer(content[:50_000])]
            if spans:
                first, last = draw(st.sampled_from(spans))
                content = content[:first] + draw(st.sampled_from(HUGE)) + content[last:]
        else:
            content = draw(_lines_changed(content, how))
    return content


@st.composite
def _lines_changed(draw: st.DrawFn, content: bytes, how: str) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return content
    i = draw(st.integers(0, len(lines) - 1))
    if how == "line away":
        del lines[i]
    elif how == "line twice":
        lines[i : i + 1] = [lines[i]] * draw(st.sampled_from((2, 3, 500)))
    elif how == "indent":
        lines[i] = draw(st.sampled_from((b" ", b"    ", b"\t"))) + lines[i]
    else:
        j = draw(st.integers(0, len(lines) - 1))
        lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


odd_files: st.SearchStrategy[Content] = st.sampled_from(
    (
        Odd(PIPE), Odd(FOLDER), Odd(LINK, "/dev/zero"), Odd(LINK, "/dev/null"), Odd(LINK, "../outside/kept.txt"),
        Odd(LINK, "../outside"), Odd(LINK, "../outside/new.txt"), Odd(LINK, "nothing"), Odd(LINK, "."),
    )
)  # fmt: skip
"""What stands where a plain file is expected."""
