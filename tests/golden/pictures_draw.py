"""Draws the test images: shapes and text, of several aspect ratios and colour types. Pillow only; the same bytes every time.
See pictures_record.py."""

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent


def font(size):
    return ImageFont.load_default(size)


def shapes():
    """a: 200 x 120 RGB, landscape: coloured shapes."""
    image = Image.new("RGB", (200, 120), (245, 240, 230))
    draw = ImageDraw.Draw(image)
    draw.rectangle((12, 14, 70, 60), fill=(200, 30, 40), outline=(20, 20, 20), width=3)
    draw.ellipse((80, 10, 140, 70), fill=(40, 90, 200))
    draw.polygon(((160, 12), (192, 66), (146, 66)), fill=(20, 150, 70))
    draw.text((16, 78), "7", fill=(0, 0, 0), font=font(30))
    draw.text((96, 78), "42", fill=(0, 0, 0), font=font(30))
    draw.line((0, 118, 200, 70), fill=(120, 0, 120), width=2)
    return image


def page():
    """b: 70 x 250 RGB, portrait: lines of text."""
    image = Image.new("RGB", (70, 250), (255, 255, 255))
    draw = ImageDraw.Draw(image)
    for line, text in enumerate(("Page 3", "see the", "figure", "with the", "red", "square", "total 19", "end")):
        draw.text((4, 6 + 29 * line), text, fill=(10 * line, 20, 60 + 20 * line), font=font(14))
    draw.rectangle((2, 2, 67, 247), outline=(0, 0, 0))
    return image


def chart():
    """c: 640 x 480 RGB, above the pixel limit of the tiny models: a bar chart."""
    image = Image.new("RGB", (640, 480), (250, 250, 255))
    draw = ImageDraw.Draw(image)
    draw.line((60, 20, 60, 430, 620, 430), fill=(0, 0, 0), width=4)
    for bar, (height, colour) in enumerate(((120, (220, 60, 60)), (330, (60, 160, 60)), (210, (60, 60, 220)), (380, (230, 180, 30)))):
        left = 90 + 130 * bar
        draw.rectangle((left, 430 - height, left + 90, 428), fill=colour, outline=(0, 0, 0))
        draw.text((left + 20, 395 - height), str(height), fill=(0, 0, 0), font=font(28))
        draw.text((left + 30, 438), "ABCD"[bar], fill=(0, 0, 0), font=font(28))
    return image


def mark():
    """d: 20 x 14 RGB, below the pixel limit: enlarged."""
    image = Image.new("RGB", (20, 14), (30, 30, 30))
    draw = ImageDraw.Draw(image)
    draw.line((0, 0, 19, 13), fill=(255, 220, 0), width=3)
    draw.rectangle((12, 1, 17, 5), fill=(0, 200, 220))
    return image


def glass():
    """e: 50 x 90 RGBA: what is transparent has a colour of its own, which `convert("RGB")` brings out."""
    image = Image.new("RGBA", (50, 90), (0, 128, 255, 0))
    draw = ImageDraw.Draw(image)
    draw.ellipse((5, 5, 44, 44), fill=(255, 0, 0, 128))
    draw.rectangle((10, 50, 40, 85), fill=(10, 200, 30, 255))
    return image


def grey():
    """f: 96 x 64 greyscale, already a multiple of the factor: not resized by Qwen3-VL's rule."""
    image = Image.new("L", (96, 64), 200)
    draw = ImageDraw.Draw(image)
    for x in range(96):
        draw.line((x, 20, x, 40), fill=(x * 255) // 95)
    draw.text((4, 44), "grey", fill=0, font=font(16))
    return image


IMAGES = {"a": shapes, "b": page, "c": chart, "d": mark, "e": glass, "f": grey}

if __name__ == "__main__":
    folder = HERE / "vlm"
    folder.mkdir(exist_ok=True)
    for name, make in IMAGES.items():
        make().save(folder / f"{name}.png", optimize=True)
