"""Draw docs/images/demo.png: a few images of the demo, from the same run that `vqshield demo` makes.

python tools/make_picture.py
"""

import base64
import io
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vqshield.demo.study import Demo, DemoSettings

SCALE, GAP, TEXT, ROWS = 4, 10, 46, 3
RIGHT, WRONG, GREY = (21, 115, 60), (176, 32, 32), (90, 90, 90)


def main() -> None:
    """One row an image, one column a stage, the classifier's answer under each."""
    demo = Demo(DemoSettings())
    demo.run()
    rows = [entry for entry in demo.gallery() if entry.pictures[0].correct][:ROWS]
    tile = 32 * SCALE
    columns = len(rows[0].pictures)
    sheet = Image.new("RGB", (columns * (tile + GAP) + GAP, ROWS * (tile + TEXT + GAP) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=12)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row.pictures):
            left, top = GAP + x * (tile + GAP), GAP + y * (tile + TEXT + GAP)
            png = base64.b64decode(picture.image.partition(",")[2])
            pixels = Image.open(io.BytesIO(png)).resize((tile, tile), Image.Resampling.NEAREST)
            sheet.paste(pixels, (left, top))
            first, _, second = picture.caption.partition(", ")
            pen.multiline_text(
                (left, top + tile + 2), f"{first}\n{second}" if second else first, GREY, font, spacing=1
            )
            mark, colour = ("right", RIGHT) if picture.correct else ("wrong", WRONG)
            pen.text((left, top + tile + 30), f"{picture.verdict} ({mark})", colour, font)
    target = Path(__file__).resolve().parents[1] / "docs" / "images" / "demo.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(target, optimize=True)


if __name__ == "__main__":
    main()
