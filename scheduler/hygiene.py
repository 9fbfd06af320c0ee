"""Text hygiene before tokenising: what no reader sees goes, look-alikes become letters, all of it becomes one line.

The tokenizer already keeps special tokens from being anything but text (`scheduler.tokens`). What is left to an
attacker is what a reader of the headline would not see or would not take for an instruction: invisible characters,
letters of another script, line breaks that imitate the seams of a prompt, floods of one word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

LONGEST_WORD = 64
"""Characters of a word that is left alone. The longest in English dictionaries has 45; what is longer is a URL, a key,
or an attack that costs a token per two or three characters."""
WORD_KEPT = 40
"""Characters that stay of a longer one."""
RUN = 8
"""So many equal characters in a row are a flood; 3 of them stay. Digits are exempt: 100000000 is a number."""
REPEATS = 3
"""So many times a word can follow itself; further ones add nothing for a reader and outvote the rest for a model."""
MARKS = 3
"""Combining marks on one letter that stay; Vietnamese needs two. Sorting a long run of them takes Unicode normalisation
quadratic time, so they are cut before it."""

_BREAKS = re.compile("[\r\n\x0b\x0c\x85\u2028\u2029]")
_CONTROLS = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"
_INVISIBLE = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb\ufe00-\ufe0f"  # direction marks, joiners, interlinear marks, variation selectors
    "\U000e0001\U000e0020-\U000e007f\U000e0100-\U000e01ef"  # tags and selectors: they spell text that nobody sees
)
_JOINERS = "[\u200c\u200d](?![\u0600-\u0dff])|(?<![\u0600-\u0dff])[\u200c\u200d]"
"""Joiners carry meaning between letters of Arabic and Indic scripts and nowhere else."""
_GONE = re.compile(f"[{_CONTROLS}{_INVISIBLE}]|{_JOINERS}")
_HIDDEN = re.compile(
    f"[{_CONTROLS}{_INVISIBLE}\u200c\u200d\u2800\u3164\uffa0\ud800-\udfff\r\n\x0b\x0c\x85\u2028\u2029]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")
_BLANKS = re.compile("[\u2800\u3164\uffa0]")
"""Braille and Hangul blanks: letters by category, nothing to the eye."""
_MARKS = re.compile(
    f"([\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{{{MARKS}}})"
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_FLOOD = re.compile(rf"([^\W\d]|[^\w\s])\1{{{RUN - 1},}}")
_LONG = re.compile(f"[!-~\xa1-\u024f]{{{LONGEST_WORD + 1},}}")
"""Latin only: Chinese and Japanese sentences have no spaces."""
_ABSURD = re.compile(rf"([^0-9])\1{{{RUN - 1}}}|[!-~]{{{LONGEST_WORD + 1}}}")
_MIXED = re.compile(r"\w*[A-Za-z]\w*")


def _plain_forms() -> Iterator[tuple[int, str]]:
    """Yield the characters that are letters, digits or signs in another dress, each with its plain form.

    Not all of NFKC: it would turn 10² into 102, which is another number. So only full-width forms, mathematical
    alphabets and circled letters, and of those only what becomes one character.
    """
    for first, last in ((0xFF01, 0xFF9F), (0xFFE0, 0xFFE6), (0x1D400, 0x1D7FF), (0x24B6, 0x24E9), (0x1F130, 0x1F169)):
        for code in range(first, last + 1):
            plain = unicodedata.normalize("NFKC", chr(code))
            if len(plain) == 1 and plain != chr(code) and not plain.isspace():
                yield code, plain


_PLAIN = dict(_plain_forms())
_LOOK_ALIKES = str.maketrans(
    # Cyrillic, then Greek; pairs that Unicode TR 39 lists as confusable and that look the same in common fonts.
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d\u04bb\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0408\u0405"
    "\u03bf\u03bd\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7",
    "aeopcyxijsdqwhABEKMHOPCTXIJSovABEZHIKMNOPTYX",
)


def clean(text: str) -> str:
    """Return a text of news as one line that shows all it says.

    Cleaning twice changes nothing more; a text with something to read in it keeps something to read. About 5 us for a
    clean headline in ASCII, 15 us for one in other letters.
    """
    if text.isascii() and text.isprintable() and not _needs_work(text):
        return text
    if not text.isascii():
        text = _SURROGATES.sub("\ufffd", text).translate(_PLAIN)
        text = _BLANKS.sub(" ", text)
    text = _GONE.sub("", _BREAKS.sub(" ", text))
    if not text.isascii():
        text = _MARKS.sub(r"\1", text)
        text = _MARKS.sub(r"\1", unicodedata.normalize("NFC", text))
        text = _MIXED.sub(_one_script, text)
    text = _FLOOD.sub(lambda match: match[1] * 3, text)
    text = _LONG.sub(lambda match: match[0][:WORD_KEPT] + "…", text)
    return " ".join(_without_repeats(text.split()))


def news_text(headline: str, body: str) -> str:
    """Return headline and body as one clean line.

    A line break between them would be the attacker's: a body that begins with the words which follow every text in a
    prompt would stand exactly where the prompt has them.
    """
    first, rest = clean(headline), clean(body)
    if not rest:
        return first
    return f"{first} {rest}" if first.endswith((".", "!", "?", ":")) else f"{first}. {rest}"


def same_length(text: str) -> str:
    """Return a text with every character replaced by exactly one, so that places in it stay where they are.

    For filings, whose figures and evidence are quoted by their place in the original: hidden characters and line breaks
    become spaces, look-alike forms of Latin letters become those letters. Idempotent.
    """
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(" ", text if text.isascii() else text.translate(_PLAIN))


def _needs_work(text: str) -> bool:
    """Return whether a printable ASCII text is not clean as it is."""
    if "  " in text or text[:1] == " " or text[-1:] == " " or _ABSURD.search(text) is not None:
        return True
    words = text.casefold().split(" ")
    return len(words) - len(set(words)) >= REPEATS


def _one_script(match: re.Match[str]) -> str:
    """Return a word in Latin letters if it mixes them with look-alikes of other scripts; any other word as it is."""
    word = match[0]
    if word.isascii():
        return word
    latin = word.translate(_LOOK_ALIKES)
    # A word that keeps letters of the other script is a real mixture (a unit, a gene), not a disguise.
    return latin if not any("\u0370" <= char <= "\u052f" for char in latin) else word


def _without_repeats(words: list[str]) -> Iterator[str]:
    """Yield words, none with letters in it more than a few times in a row."""
    before, run = "", 0
    for word in words:
        folded = word.casefold()
        run = run + 1 if folded == before else 1
        before = folded
        if run <= REPEATS or not any(map(str.isalpha, word)):
            yield word
