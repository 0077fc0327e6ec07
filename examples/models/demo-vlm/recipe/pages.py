"""Pages: pictures of the demo model's language, on which every word is a glyph of 16 x 16 pixels and
one row of a picture (patches of 8, merged 2 x 2).

`quality/glyphs.txt` has a line for each word: the word, its 16 blocks as a number in hexadecimal (bit
4 * row + column: 1 is ink, 0 is paper), the colour of ink and that of paper. `python3 pages.py`
draws the table anew; `tributary quality --suite pages` draws pages by the same table.
"""
import random
from pathlib import Path

import numpy as np

import tasks

GLYPHS = Path(__file__).resolve().parents[4] / "quality/glyphs.txt"
SIDE, WIDE, BLANK = 16, 8, len(tasks.VOCAB)


def drawn_glyphs():
    """Blocks that differ in three places from all others where that is possible, in two colours."""
    r, codes = random.Random(7), []
    while len(codes) < len(tasks.VOCAB):
        code = r.getrandbits(16)
        nearest = min((bin(code ^ other).count("1") for other in codes), default=16)
        if nearest >= 3 or (len(codes) > 300 and nearest == 2 and r.random() < .05):
            codes.append(code)
    r = random.Random(8)
    colour = lambda low, high: bytes(r.randrange(low, high) for _ in range(3)).hex()
    return [f"{word} {code:04x} {colour(0, 110)} {colour(170, 256)}" for word, code in zip(tasks.VOCAB, codes)]


def glyphs():
    """`[words + 1, 16, 16, 3]` bytes; the last glyph is blank."""
    table = np.full((BLANK + 1, SIDE, SIDE, 3), 255, np.uint8)
    for line in GLYPHS.read_text().splitlines():
        word, code, ink, paper = line.split()
        for bit in range(16):
            y, x = 4 * (bit // 4), 4 * (bit % 4)
            table[tasks.VOCAB[word], y:y + 4, x:x + 4] = list(bytes.fromhex(ink if int(code, 16) >> bit & 1 else paper))
    return table


def lines(words):
    """The cells of a passage as lines of 8: a sentence begins a line, and so does what follows the
    first word."""
    cells, begins = [], True
    for place, word in enumerate(words):
        if begins:
            cells += [BLANK] * (-len(cells) % WIDE)
        cells.append(word)
        begins = place == 0 or word == tasks.VOCAB["."]
    cells += [BLANK] * (-len(cells) % WIDE)
    return np.array(cells).reshape(-1, WIDE)


def page(words):
    """The cells of a page with one passage `[lines, 8]`."""
    return lines(words)


def sheet(passages, side):
    """The cells of a large page with `side` x `side` passages, line by line of passages: blocks of 8
    columns and of the lines that the longest passage has."""
    blocks = [lines(words) for words in passages]
    height = max(map(len, blocks))
    cells = np.full((side * height, side * WIDE), BLANK)
    for number, block in enumerate(blocks):
        top, left = number // side * height, number % side * WIDE
        cells[top:top + len(block), left:left + WIDE] = block
    return cells


def picture(cells, table, noise=12, generator=None):
    """The pixels of cells `[lines * 16, columns * 16, 3]`, each off by up to `noise` levels."""
    high, wide = cells.shape
    pixels = table[cells].transpose(0, 2, 1, 3, 4).reshape(high * SIDE, wide * SIDE, 3)
    generator = generator or np.random.default_rng(0)
    off = generator.integers(-noise, noise + 1, pixels.shape, dtype=np.int16)
    return np.clip(pixels.astype(np.int16) + off, 0, 255).astype(np.uint8)


if __name__ == "__main__":
    GLYPHS.write_text("\n".join(drawn_glyphs()) + "\n")
