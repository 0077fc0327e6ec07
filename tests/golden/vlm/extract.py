"""Takes the data of the tests of pictures from a dump of two tiny vision-language models.

The dump is that of Hugging Face's transformers 5.24.0 (torch 2.15.0, torchvision 0.29.2, on one thread of a CPU) for the six
pictures that `../pictures_draw.py` draws, which stand beside this file:

| picture | form |
| --- | --- |
| a, b | 200x120 and 70x250 RGB |
| c, d | 640x480 and 20x14 RGB: made smaller and larger |
| e | 50x90 RGBA |
| f | 96x64 grey |

It has `images/rgb.safetensors`, the decoded pictures (`NAME` U8 [height, width, 3]; transparent pixels lie on white), and for
each MODEL of qwen3vl-tiny and qwen25vl-tiny `MODEL/images.safetensors`. Written here are

  rgb.sha256                    `SHA-256 HEIGHT WIDTH NAME` of each decoded picture
  MODEL.safetensors             `NAME.resized` U8 [height, width, 3], `NAME.grid_thw` I64 [1, 3], and `d.pixel_values`
                                F32 [24, 1536 or 1176], the patch rows of picture d
  ../MODEL/selective-tiles.safetensors
                                of MODEL/selective-tiles.safetensors (`tiles` of `../pictures_selective.py`: picture c in 2 x 2
                                tiles, each a chunk): ids, lengths of chunks, places of rows in the picture, positions, and for
                                `raster` and `tiles`, the order of the uncut picture and tile after tile, scores, selected rows,
                                and the last row of the logits

Patch and merge are 16 and 2 (Qwen3-VL) and 14 and 2 (Qwen2.5-VL), pixels 4096 to 65536 and 3136 to 50176.

Run: python extract.py DUMP. Needs nothing but Python.
"""

import hashlib
import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).parent
MODELS = ("qwen3vl-tiny", "qwen25vl-tiny")
PICTURES = "abcdef"


def tensors(path):
    """Type, shape and bytes of every tensor of a safetensors file."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    data = whole[8 + length:]
    for name, entry in json.loads(whole[8:8 + length]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            yield name, (entry["dtype"], entry["shape"], data[first:end])


def save(path, kept):
    """A safetensors file, its tensors in the order of their names."""
    head, data = {}, b""
    for name, (dtype, shape, content) in sorted(kept.items()):
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def last_row(dtype, shape, content):
    """The last row of a matrix of numbers of four bytes."""
    return dtype, shape[1:], content[-4 * shape[1]:]


def narrow(dtype, shape, content):
    """Integers in 32 bits; other numbers as they are."""
    if dtype != "I64":
        return dtype, shape, content
    numbers = struct.unpack(f"<{len(content) // 8}q", content)
    return "I32", shape, struct.pack(f"<{len(numbers)}i", *numbers)


def tiles(dump, model):
    """What was recorded of a picture in tiles, without what the authors' own program does."""
    kept = {}
    for name, tensor in tensors(dump / model / "selective-tiles.safetensors"):
        if not name.startswith("published"):
            kept[name] = last_row(*tensor) if ".logits." in f".{name}" else narrow(*tensor)
    save(HERE.parent / model / "selective-tiles.safetensors", kept)


def main(dump):
    lines = []
    for name, (_, (height, width, _), content) in sorted(tensors(dump / "images/rgb.safetensors")):
        lines.append(f"{hashlib.sha256(content).hexdigest()} {height} {width} {name}\n")
    (HERE / "rgb.sha256").write_text("".join(lines))
    names = {f"{picture}.{what}" for picture in PICTURES for what in ("resized", "grid_thw")} | {"d.pixel_values"}
    for model in MODELS:
        kept = {name: tensor for name, tensor in tensors(dump / model / "images.safetensors") if name in names}
        assert kept.keys() == names, names - kept.keys()
        save(HERE / f"{model}.safetensors", kept)
        tiles(dump, model)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
