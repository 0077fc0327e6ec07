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


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
