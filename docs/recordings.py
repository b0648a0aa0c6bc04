"""Make the moving pictures of README and the pictures of air combat: `make recordings`.

It trains QMIX on 8m for a minute or two on a hidden terminal, and records the display. Then it records a battle of the
trained policy, and air combats between rules.
"""

import argparse
import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pyte
from PIL import Image, ImageDraw, ImageFont

FOLDER = Path(__file__).parent
COLUMNS, ROWS = 100, 30
SIZE = 13
"""Font size in pixels."""
INTERVAL = 1.5
"""Seconds of the run between two frames."""
SHOWN, HELD = 120, 4_000
"""Duration of a frame, and of the last frame, in milliseconds."""
COLOURS = {
    "default": "#d0d0d0",
    "black": "#303030",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#ffffff",
    "brightblack": "#7f848e",
    "brightblue": "#61afef",
    "brightgreen": "#98c379",
    "brightcyan": "#56b6c2",
}
BACKGROUND = "#16181d"
BRAILLE = "\u2800"
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each dot of a Braille character, by its bit."""


def main() -> None:
    """Make all recordings, or a part of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500_000, help="environment steps of the run (default: 500000)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the films go (default: beside this file)")
    parser.add_argument("--part", choices=["training", "air_combat"], help="what to make (default: both)")
    options = parser.parse_args()
    if options.part != "air_combat":
        training(options.folder, options.steps)
    if options.part != "training":
        air_combat(options.folder)


def training(folder: Path, steps: int) -> None:
    """Record a run, and a battle of its policy."""
    with tempfile.TemporaryDirectory() as runs:
        command = ["run", "qmix_8m", "--steps", str(steps), "--seed", "1", "--as", "film"]
        pictures = [drawn(screen) for screen in screens([sys.executable, "-m", "orchestra", *command], folder=runs)]
        save(pictures, folder / "display.gif")
        play(f"{runs}/runs/qmix_8m/film", folder / "battle.gif", "--fps", "6")


def air_combat(folder: Path) -> None:
    """Make a picture and a recording of air combats, both small enough for a page."""
    film = ["--opponent", "easy", "--seed", "1", "--every", "9", "--fps", "4"]
    play("air_combat:fighter10v10", folder / "air_combat.gif", *film)
    picture = folder / "air_combat.png"
    play("air_combat:detector2_fighter10", picture, "--opponent", "hard", "--seed", "12", "--step", "109")
    with Image.open(picture) as large:
        small = large.convert("RGB").resize((large.width // 2, large.height // 2), Image.Resampling.LANCZOS)
    small.quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)


def play(what: str, file: Path, *flags: str) -> None:
    """Run `orchestra play`, and save its output."""
    subprocess.run([sys.executable, "-m", "orchestra", "play", what, "--save", str(file), *flags], check=True)


def screens(command: list[str], *, folder: str) -> Iterator[pyte.Screen]:
    """Run a command on a terminal of its own; yield the screen every `INTERVAL` seconds and at the end.

    Raises:
        SystemExit: the command fails.
    """
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "", "PYTHONUTF8": "1"}
    started = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment, cwd=folder)
    os.close(its)
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    due = time.monotonic() + INTERVAL
    while True:
        ready, _, _ = select.select([ours], [], [], max(0.0, due - time.monotonic()))
        if ready:
            try:
                said = os.read(ours, 1 << 16)
            except OSError:  # raised by Linux when the last process has closed the terminal
                break
            stream.feed(decode(said))
        if time.monotonic() >= due:
            due += INTERVAL
            yield screen
    if started.wait() != 0:
        raise SystemExit("\n".join(screen.display))
    yield screen


def drawn(screen: pyte.Screen) -> Image.Image:
    """Return a terminal's screen as a picture."""
    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
    plain = ImageFont.truetype(fonts / "DejaVuSansMono.ttf", SIZE)
    bold = ImageFont.truetype(fonts / "DejaVuSansMono-Bold.ttf", SIZE)
    width, height, margin = round(plain.getlength("m")), SIZE + 4, 10
    picture = Image.new("RGB", (COLUMNS * width + 2 * margin, ROWS * height + 2 * margin), BACKGROUND)
    pen = ImageDraw.Draw(picture)
    for row in range(ROWS):
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            if cell.data.strip():
                colour = COLOURS.get(cell.fg) or f"#{cell.fg}"
                x, y = margin + column * width, margin + row * height
                if BRAILLE <= cell.data < chr(ord(BRAILLE) + 256):  # the font has no Braille characters
                    for bit, (right, down) in enumerate(DOTS):
                        if ord(cell.data) - ord(BRAILLE) >> bit & 1:
                            dot = (x + 4 * right, y + 4 * down)
                            pen.rectangle((*dot, dot[0] + 2, dot[1] + 2), fill=colour)
                else:
                    pen.text((x, y), cell.data, fill=colour, font=bold if cell.bold else plain)
    return picture


def save(pictures: list[Image.Image], path: Path) -> None:
    """Write an animation. Empty pictures are left out."""
    shown = [picture for picture in pictures if picture.getcolors(maxcolors=2) is None]
    colours = max(shown, key=lambda picture: len(picture.getcolors(1 << 16) or [])).quantize(colors=64)
    times = [SHOWN] * (len(shown) - 1) + [HELD]
    few = [picture.quantize(palette=colours, dither=Image.Dither.NONE) for picture in shown]
    few[0].save(path, save_all=True, append_images=few[1:], duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    main()
