"""Makes a screenshot small enough to be kept: at most 128 colours, as a palette."""

import collections
import struct
import zlib

# The least distance of two colours of a palette, squared.
APART = 60

def rows(png):
    """The width of a PNG of 8 bits a channel, and its rows as triples of bytes."""
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and colour in (2, 6), "a screenshot of Chromium"
        if kind == b"IDAT":
            data += body
        at += 12 + length
    size = 3 if colour == 2 else 4
    raw, line = zlib.decompress(data), size * width
    before, found = bytearray(line), []
    for top in range(0, height * (line + 1), line + 1):
        now = bytearray(raw[top + 1:top + 1 + line])
        unfilter(raw[top], now, before, size)
        found.append([bytes(now[x:x + 3]) for x in range(0, line, size)])
        before = now
    return width, found


def unfilter(kind, now, before, size):
    """Undoes the filter of a row, which stands before it."""
    for x in range(len(now)) if kind else ():
        left, up = now[x - size] if x >= size else 0, before[x]
        corner = before[x - size] if x >= size else 0
        if kind == 4:
            guess = left + up - corner
            off = abs(guess - left), abs(guess - up), abs(guess - corner)
            add = (left, up, corner)[off.index(min(off))]
        else:
            add = (0, left, up, (left + up) // 2)[kind]
        now[x] = (now[x] + add) & 255


def smaller(png):
    """The same picture with the colours that it has most and that differ clearly; each other by the nearest of them."""
    width, lines = rows(png)
    counts = collections.Counter(colour for line in lines for colour in line)
    palette = []

    def apart(a, b):
        return sum((x - y) ** 2 for x, y in zip(a, b))

    for colour, _ in counts.most_common():
        if len(palette) < 128 and all(apart(colour, taken) > APART for taken in palette):
            palette.append(colour)

    def nearest(colour):
        return min(range(len(palette)), key=lambda at: apart(palette[at], colour))

    number = {colour: nearest(colour) for colour in counts}
    data = b"".join(b"\0" + bytes(number[colour] for colour in line) for line in lines)

    def part(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, len(lines), 8, 3, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"PLTE", b"".join(palette)) + part(b"IDAT", zlib.compress(data, 9)) + part(b"IEND", b"")
