"""Encodes one small drawing in the kinds of files that pictures come in, and decodes each with Pillow.

Files in `formats`: NAME.EXTENSION, and `formats.safetensors` with `NAME` U8 [height, width, 3], Pillow's pixels (turned by EXIF's
orientation, and as RGB without opacity where the file has none). Animations have no pixels there.

Run: python formats.py. Needs Pillow (recorded with 13.0.0).
"""

import pathlib

from PIL import Image, ImageDraw, ImageOps

from extract import save

FOLDER = pathlib.Path(__file__).parent / "formats"
ORIENTATION = 0x0112


def drawing(width=40, height=28, shift=0):
    image = Image.new("RGB", (width, height), (236, 230, 210))
    draw = ImageDraw.Draw(image)
    draw.rectangle((3 + shift, 3, 17 + shift, 13), fill=(190, 40, 50))
    draw.ellipse((18, 9, 36, 25), fill=(40, 80, 190))
    draw.line((0, 27, 39, 14), fill=(10, 120, 60), width=2)
    return image


def exif(orientation):
    found = Image.Exif()
    found[ORIENTATION] = orientation
    return found


def main():
    FOLDER.mkdir(exist_ok=True)
    plain = drawing()
    glass = plain.convert("RGBA")
    glass.putalpha(Image.linear_gradient("L").resize(plain.size))
    turned = exif(6)
    still = {
        "baseline.jpg": (plain, {"quality": 90}),
        "progressive.jpg": (plain, {"quality": 90, "progressive": True}),
        "full-colour.jpg": (plain, {"quality": 95, "subsampling": 0}),
        "grey.jpg": (plain.convert("L"), {"quality": 90}),
        "cmyk.jpg": (plain.convert("CMYK"), {"quality": 95}),
        "turned.jpg": (plain, {"quality": 90, "exif": turned}),
        "turned.png": (plain, {"exif": turned}),
        "turned.webp": (plain, {"lossless": True, "exif": turned}),
        "lossy.webp": (plain, {"quality": 80}),
        "lossless.webp": (plain, {"lossless": True}),
        "glass.webp": (glass, {"quality": 80}),
        "palette.png": (plain.quantize(16), {}),
        "bits.png": (plain.convert("1"), {}),
    }
    # The other ways to turn and mirror.
    still |= {f"turned-{orientation}.png": (plain, {"exif": exif(orientation)}) for orientation in (1, 2, 3, 4, 5, 7, 8)}
    pixels = {}
    for name, (image, options) in still.items():
        image.save(FOLDER / name, **options)
        if name != "glass.webp":
            found = ImageOps.exif_transpose(Image.open(FOLDER / name)).convert("RGB")
            pixels[name] = ("U8", [found.height, found.width, 3], found.tobytes())
    frames = [drawing(shift=shift) for shift in range(3)]
    for name in ("moving.webp", "moving.png"):
        frames[0].save(FOLDER / name, save_all=True, append_images=frames[1:], duration=100)
    save(FOLDER / "formats.safetensors", pixels)


if __name__ == "__main__":
    main()
