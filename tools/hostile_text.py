"""A megabyte of text that is hard on tokenizers, the same every time.

All planes of Unicode, combining marks, joined emoji, scripts without spaces, code, prose with
contractions, numbers in many scripts, every kind of white space, and long runs of one character.
"""

import random
import sys
import unicodedata

PROSE = ("the", "harbour", "I'm", "we'll", "don't", "DON'T", "they've", "it's", "'tis", "o'clock",
         "co-operate", "naïve", "café", "Straße", "e.g.", "U.S.A.", "well—", "“quoted”", "(and)",
         "http://example.org/a?b=c&d=%20", "user@example.org", "#tag", "$5.00", "50%", "x²", "½")
CODE = ("for (int i = 0; i < n; ++i) {\n", "\treturn a[i] ? b->c : ~d;\n", "}\n\n", "    def f(self):\n",
        "        yield {**x, 'k': [1, 2]}  # why\n", "#include <vector>\n", "/* ... */", "x|=y<<3;",
        "SELECT * FROM t WHERE a='b''c';\r\n", "<div class=\"a\">&nbsp;</div>", "\\begin{x}\\\\", "```",
        "0xDEADbeef", "1e-10", "snake_case_name", "camelCaseName", "__init__", "!==", "::", "->")
SPACE = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\t \t", "\u00a0", "\u0085",
         "\u2003", "\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "\x0b", "\x0c", "\x1c", " " * 17)
SCRIPTS = ("Привет, мир", "你好，世界。", "こんにちは", "안녕하세요", "مرحبا بالعالم", "שלום", "नमस्ते",
           "สวัสดี", "Γειά", "Xin chào", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇸🇪🇯🇵", "👍🏽", "e\u0301\u0323",
           "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤", "ﬁne", "Ａｂｃ", "ǅ", "İıſK")
DIGITS = ("0", "7", "42", "1234567890", "3.14159", "1,000,000", "٣٤٥", "०१२", "Ⅻ", "²³", "½⅓", "①②", "十二",
          "１２３", "𝟘𝟙", "12th", "v2.0.1")
RUNS = ("a", "=", " ", "\n", "0", "é", "中", "😀", "-", "\t", "Ab", "'s", "\u0301")


def _assigned() -> list[str]:
    """Every character of this Python's Unicode version (14 on Debian 12, as its PCRE2).

    Characters assigned later are left out: by tables that know them they are letters, by others not,
    so their ids can differ (docs/formats.md).
    """
    return [c for c in map(chr, range(sys.maxunicode + 1))
            if unicodedata.category(c) not in ("Cn", "Cs")]


def hostile_text(size: int, seed: int = 20240229) -> str:
    """About `size` bytes of UTF-8."""
    rng = random.Random(seed)
    assigned = _assigned()
    # Private-use characters fill two planes and test little; all others are drawn evenly.
    public = [c for c in assigned if unicodedata.category(c) != "Co"]

    def words() -> str:
        return "".join(rng.choice(PROSE) + rng.choice((" ", " ", " ", ", ", ". ", "\n"))
                       for _ in range(rng.randint(1, 20)))

    def mixed(source, most: int) -> str:
        return "".join(rng.choice(source) for _ in range(rng.randint(1, most)))

    def tangle() -> str:
        everything = (PROSE, CODE, SPACE, SCRIPTS, DIGITS, public)
        return "".join(rng.choice(rng.choice(everything)) for _ in range(rng.randint(2, 30)))

    kinds = (words, words, tangle, tangle, lambda: mixed(CODE, 8), lambda: mixed(SPACE, 6),
             lambda: mixed(SCRIPTS, 4), lambda: mixed(DIGITS, 6), lambda: mixed(public, 40),
             lambda: mixed(assigned, 6),
             lambda: rng.choice(RUNS) * rng.choice((2, 3, 5, 8, 40)))
    parts, length = [], 0
    # A few runs, long enough to reveal quadratic work.
    for run in RUNS:
        parts.append(run * 1000 + "x")
    while length < size:
        part = rng.choice(kinds)()
        parts.append(part)
        length += len(part.encode())
    return "".join(parts)
