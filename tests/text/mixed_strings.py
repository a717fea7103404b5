"""Random strings that are hard on tokenizers: emoji, Czech, CJK, combining and control characters."""

import random

_PIECES = (
    "👩\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈",
    "👍🏽",
    "🇨🇿",
    "☕️",
    "🧑🏿\u200d🚀",
    "😀",
    "Příliš",
    "žluťoučký",
    "kůň",
    "úpěl",
    "ďábelské",
    "ódy",
    "šťáva",
    "漢字",
    "日本語テキスト",
    "한국어",
    "\uff46\uff55\uff4c",
    "𠮷野家",
    "。、",
    "e\u0301",
    "n\u0303o",
    "a\u0328\u0301",
    "Z\u0351\u036b\u0343",
    "क्षि",
    "ไทย",
    "\u0628\u064e",
    "\x00",
    "\x01\x1b[0m",
    "\x7f",
    "\u0085",
    "\u200b",
    "\u2028",
    "\ufeff",
    "\ufffd",
    "\U0010ffff",
    "the ",
    "don't ",
    "x = 3.14;",
    "  ",
    "\n\n",
    "\t",
    "\r\n",
    "<b>",
    "<|im",
    "</think",
    "1234567",
)


def mixed_strings(count: int, seed: int = 0, longest: int = 7) -> list[str]:
    chooser = random.Random(seed)
    return ["".join(chooser.choices(_PIECES, k=chooser.randint(1, longest))) for _ in range(count)]
