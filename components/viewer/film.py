"""Battles as files: pictures and films."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from components.reporting.replaced_file import replaced
from components.viewer.figures import figure_of
from components.viewer.recorded import Recorded, watched
from orchestra import UsageError

PICTURES = (".png", ".pdf", ".svg")
FILMS = (".gif", ".mp4")

_FILM_DPI = 110.0
_PRINT_DPI = 300.0
_COLOURS = 128
_HELD = 6  # frames for which the last one of an episode is shown


def check_file(path: Path) -> None:
    """Check that a file of this name can be written, before a battle is played for it.

    Raises:
        UsageError: its suffix is unknown, its folder is missing or read-only, or it needs ffmpeg, which is missing.
    """
    if path.suffix not in PICTURES + FILMS:
        raise UsageError(f"--save: {str(path)!r} must end in one of {', '.join(FILMS + PICTURES)}")
    if not path.parent.is_dir():
        raise UsageError(f"--save: there is no folder {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--save: nothing can be written into {str(path.parent)!r}")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise UsageError("--save: an .mp4 needs the program ffmpeg, which is not on the PATH; a .gif needs nothing")


def save_picture(battle: Recorded, path: Path, step: int) -> None:
    """Write one step as a picture, in the format of the suffix of `path`; the file is complete or absent.

    Raises:
        IndexError: the battle had no such step.
        OSError: the file cannot be written.
    """
    with replaced(path) as unfinished:
        figure_of(battle, step, dpi=_PRINT_DPI).savefig(unfinished)


def save_film(battles: Sequence[Recorded], path: Path, fps: float, stride: int | None = None) -> int:
    """Write steps of all battles, one frame each, the last one several times; return the number of frames.

    Args:
        battles: recordings.
        path: its suffix names the format.
        fps: frames per second.
        stride: steps from one frame to the next; that of the recording by default.

    Raises:
        UsageError: ffmpeg failed; the message says why.
        OSError: the file cannot be written.
    """
    with replaced(path) as unfinished:
        return (_write_gif if path.suffix == ".gif" else _write_mp4)(_images(battles, stride), unfinished, fps)


def _images(battles: Sequence[Recorded], stride: int | None) -> Iterator[NDArray[np.uint8]]:
    """Yield images (height, width, 3), all of the size of the first, because figures of random armies may differ."""
    size: tuple[int, int] | None = None
    for battle in battles:
        for frame in watched(battle, stride):
            figure = figure_of(battle, frame.step, dpi=_FILM_DPI)
            figure.canvas.draw()
            image = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())[..., :3])  # type: ignore[attr-defined]  # Agg's
            size = size or (image.width, image.height)
            if image.size != size:
                page = Image.new("RGB", size, "white")
                image.thumbnail(size)
                page.paste(image, ((size[0] - image.width) // 2, (size[1] - image.height) // 2))
                image = page
            yield from [np.asarray(image)] * (_HELD if frame.outcome else 1)


def _write_gif(images: Iterator[NDArray[np.uint8]], path: Path, fps: float) -> int:
    frames: list[Image.Image] = []
    for image in images:
        picture = Image.fromarray(image)
        # One palette for all, or colours would flicker; no dithering, so that unchanged ground looks unchanged.
        if frames:
            frames.append(picture.quantize(palette=frames[0], dither=Image.Dither.NONE))
        else:
            frames.append(picture.quantize(_COLOURS, dither=Image.Dither.NONE))
    duration = max(round(1000.0 / fps), 20)  # viewers treat less as an error, and show such films slowly
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=duration, loop=0, optimize=True)
    return len(frames)


def _write_mp4(images: Iterator[NDArray[np.uint8]], path: Path, fps: float) -> int:
    first = next(images)
    height, width = (side - side % 2 for side in first.shape[:2])  # the usual encoding supports only even sizes
    words = ["ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    words += ["-r", str(fps), "-i", "-", "-pix_fmt", "yuv420p", str(path)]
    count = 0
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:  # noqa: S603 (no shell)
        assert ffmpeg.stdin is not None
        assert ffmpeg.stderr is not None
        try:
            for image in itertools.chain((first,), images):
                ffmpeg.stdin.write(image[:height, :width].tobytes())
                count += 1
        except BrokenPipeError:
            pass  # the encoder ended early: its own message is part of the error below
        with suppress(BrokenPipeError):  # the same, with the last data still unsent
            ffmpeg.stdin.close()
        said = ffmpeg.stderr.read().decode(errors="replace").strip()
        if ffmpeg.wait() != 0:
            raise UsageError(f"ffmpeg failed with {ffmpeg.returncode}: {said.splitlines()[-1] if said else 'no word'}")
    return count
