#!/usr/bin/python3
"""Image folders for tests, and what Pillow makes of their images.

  make_images.py kinds DIR
      DIR/NAME.jpg and .png, one of each kind, and beside each NAME.jpg.rgb: what Pillow's convert("RGB") gives. JPEGs have
      NAME.jpg.4.rgb and .2.rgb too, decoded at four and two eighths of their size.
  make_images.py folder DIR
      class folders under DIR/train and DIR/val, and DIR/order: what torchvision's ImageFolder would list, a line each of label
      and path. Beside each image of val NAME.eval: the usual evaluation's centre of 28x28 pixels, plane by plane.
  make_images.py warned FILE
      a JPEG with a marker in the midst of its pixels, which Pillow reads and libjpeg warns of, and beside it FILE.rgb
  make_images.py crops DIR
      DIR/crops.png and DIR/crops: lines of left, top, width, height of a box, and a size; for line k DIR/k.crop, the box resized
      to a square of that size.

Bytes only, so that no library is needed to read them. Exits with 77 where python3-pil is missing.
"""
import io
import os
import pathlib
import struct
import sys
import zlib

SKIP = 77

try:
    from PIL import Image
except ImportError as error:
    print(f"{sys.executable}: {error}", file=sys.stderr)
    sys.exit(SKIP)


def picture(width, height, seed=0, mode="RGB"):
    """Slopes, edges and some noise: every channel of its own."""
    state = seed * 2654435761 % 2**32 + 1
    pixels = bytearray()
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                state = (state * 1664525 + 1013904223) % 2**32
                slope = 200 * (x + c * y) // (width + c * height)
                edge = 40 if (x // 7 + y // (5 + c)) % 2 else 0
                pixels.append(min(255, slope + edge + (state >> 28)))
    return Image.frombytes(mode, (width, height), bytes(pixels))


def planes(image):
    data = image.convert("RGB").tobytes()
    return data[0::3] + data[1::3] + data[2::3]


def png(width, height, bits, kind, rows, palette=b"", crc=0, palette_crc=0, adler=0):
    """A PNG that Pillow cannot write: rows of bytes as the format has them. What is added to checksums makes them wrong."""
    def chunk(name, data, more=0):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data) + more & 0xffffffff)
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    body = body[:-4] + struct.pack(">I", struct.unpack(">I", body[-4:])[0] + adler & 0xffffffff)
    colours = chunk(b"PLTE", palette, palette_crc) if palette else b""
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + colours + chunk(b"IDAT", body, crc) +
            chunk(b"IEND", b""))


def make_kinds(folder):
    rgb = picture(61, 45)
    rgb.save(folder / "full_colour.jpg", quality=90, subsampling=0)
    rgb.save(folder / "half_colour.jpg", quality=75, subsampling=2)
    rgb.save(folder / "progressive.jpg", progressive=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    rgb.save(folder / "turned.jpg", exif=exif)
    picture(40, 33, mode="L").save(folder / "grey.jpg")
    picture(40, 33, mode="CMYK").save(folder / "inks.jpg")
    Image.new("RGB", (1, 1), (10, 200, 30)).save(folder / "one_pixel.jpg")

    rgb.save(folder / "colour.png")
    picture(30, 20, mode="RGBA").save(folder / "transparent.png")
    picture(30, 20, mode="LA").save(folder / "transparent_grey.png")
    picture(30, 20, mode="L").save(folder / "grey.png")
    picture(30, 20, mode="L").convert("1").save(folder / "black_and_white.png")
    palette = rgb.quantize(200)
    palette.save(folder / "palette.png")
    palette.save(folder / "transparent_palette.png", transparency=3)
    rgb.quantize(4).save(folder / "palette_of_4.png", bits=2)
    grey4 = [bytes((16 * x + y) % 256 for x in range(5)) for y in range(8)]
    (folder / "grey_of_4_bits.png").write_bytes(png(10, 8, 4, 0, grey4))
    deep = [struct.pack(">12H", *((5003 * x + 977 * y) % 65536 for x in range(12))) for y in range(5)]
    (folder / "colour_of_16_bits.png").write_bytes(png(4, 5, 16, 2, deep))
    Image.new("RGB", (1, 1), (10, 200, 30)).save(folder / "one_pixel.png")
    # Colours beyond the palette.
    two = bytes((200, 10, 20, 30, 220, 40))
    (folder / "palette_of_8_bits_too_short.png").write_bytes(png(6, 4, 8, 3, [bytes((0, 1, 2, 77, 200, 255))] * 4, two))
    (folder / "palette_of_4_bits_too_short.png").write_bytes(png(6, 4, 4, 3, [bytes((0x01, 0x2a, 0xf0))] * 4, two))
    (folder / "wrong_checksum.png").write_bytes(png(4, 5, 16, 2, deep, crc=1))

    for path in sorted(folder.iterdir()):
        (folder / f"{path.name}.rgb").write_bytes(Image.open(path).convert("RGB").tobytes())
        if path.suffix == ".jpg":
            for eighths in (4, 2):
                image = Image.open(path)
                image.draft(image.mode, tuple(max(1, side * eighths // 8) for side in image.size))
                (folder / f"{path.name}.{eighths}.rgb").write_bytes(image.convert("RGB").tobytes())
    grey16 = [struct.pack(">4H", *(9000 * x for x in range(4)))] * 3
    (folder / "grey_of_16_bits.png").write_bytes(png(4, 3, 16, 0, grey16))
    for name, damage in ("palette", {"palette_crc": 1}), ("zlib", {"adler": 1}):
        damaged = folder / f"damaged_{name}.png"
        damaged.write_bytes(png(2, 1, 8, 3, [b"\0\1"], two, **damage))
        try:
            Image.open(damaged).load()
            raise AssertionError("Pillow reads it")
        except (SyntaxError, OSError):
            pass


def evaluation(image, size):
    shorter = size * 256 // 224
    width, height = image.size
    longer = shorter * max(width, height) // min(width, height)
    resized = (longer, shorter) if width >= height else (shorter, longer)
    image = image.convert("RGB").resize(resized, Image.BILINEAR)
    left, top = round((resized[0] - size) / 2), round((resized[1] - size) / 2)
    return image.crop((left, top, left + size, top + size))


def make_folder(folder):
    splits = {
        "train": [("bee/2.jpg", (60, 40)), ("bee/10.JPEG", (41, 67)), ("ant/a-b/1.png", (32, 32)), ("ant/a/1.png", (32, 32)),
                  ("ant/a/deep/er/1.jpg", (90, 90)), ("ant/Z.PNG", (33, 50)), ("Cat/x.jpg", (35, 29))],
        "val": [("bee/wide.jpg", (131, 47)), ("bee/high.png", (40, 97)), ("bee/small.jpg", (20, 13)), ("bee/fits.png", (32, 32)),
                ("Cat/large.jpg", (300, 257))]}
    for split, images in splits.items():
        for name, size in images:
            path = folder / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            image = picture(*size, seed=len(name))
            image.save(path, **({} if path.suffix.lower() == ".png" else {"quality": 92}))
            if split == "val":
                path.with_suffix(path.suffix + ".eval").write_bytes(planes(evaluation(Image.open(path), 28)))
    (folder / "train" / "bee" / "notes.txt").write_text("no image\n")
    (folder / "train" / "readme.jpg").write_text("in no class\n")

    train = str(folder / "train")
    lines = []
    for label, name in enumerate(sorted(entry.name for entry in os.scandir(train) if entry.is_dir())):
        for root, _, files in sorted(os.walk(os.path.join(train, name), followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith((".jpg", ".jpeg", ".png")):
                    lines.append(f"{label} {os.path.join(root, file)}\n")
    (folder / "order").write_text("".join(lines))


def make_warned(file):
    bytes_ = io.BytesIO()
    picture(60, 40).save(bytes_, "JPEG", quality=92)
    jpeg = bytes_.getvalue()
    middle = jpeg[:len(jpeg) // 2] + b"\xff\xd3" + jpeg[len(jpeg) // 2:]
    file.write_bytes(middle)
    file.with_suffix(".jpg.rgb").write_bytes(Image.open(file).convert("RGB").tobytes())


def make_crops(folder):
    image = picture(83, 59)
    image.save(folder / "crops.png")
    boxes = [(0, 0, 83, 59, 32), (5, 7, 60, 40, 20), (11, 3, 9, 13, 24), (82, 58, 1, 1, 4), (20, 0, 37, 59, 37), (0, 30, 83, 2, 1)]
    (folder / "crops").write_text("".join("%d %d %d %d %d\n" % box for box in boxes))
    for k, (left, top, width, height, size) in enumerate(boxes):
        crop = image.crop((left, top, left + width, top + height)).resize((size, size), Image.BILINEAR)
        (folder / f"{k}.crop").write_bytes(planes(crop))


if __name__ == "__main__":
    {"kinds": make_kinds, "folder": make_folder, "warned": make_warned, "crops": make_crops}[sys.argv[1]](pathlib.Path(sys.argv[2]))
