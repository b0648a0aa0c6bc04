"""The chart of a display: results of training and of greedy tests over environment steps, in characters."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from components.reporting.progress import Progress

TRAIN = "bright_blue"
TEST = "dark_orange"
_REMEMBERED = 2048  # points of a curve; a terminal shows a few hundred
_LABEL = "{:>4} │"
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column, then row from the top


class Results:
    """The chart's data: win rates so far, in training and in tests, or returns if episodes cannot be won."""

    def __init__(self) -> None:
        self.train: list[tuple[int, float]] = []
        self.test: list[tuple[int, float]] = []
        self.are_returns = False
        self._tests = 0

    @property
    def bounds(self) -> tuple[float, float]:
        """The values at the bottom and the top of the chart."""
        if not self.are_returns:
            return 0.0, 1.0
        values = [value for _, value in (*self.train, *self.test)]
        low, high = min(values, default=0.0), max(values, default=0.0)
        return low, high if high > low else low + 1.0

    def add(self, progress: Progress) -> None:
        """Add the record's results: those of training always, those of a test only if it is new."""
        train, test = progress.train_win_rate, progress.test_win_rate
        are_returns = progress.has_returns_alone
        if are_returns:
            train, test = progress.train_return, progress.test_return
        if self.are_returns and not are_returns:  # the first episode is won: earlier ones were not
            self.train.clear()
            self.test.clear()
        self.are_returns = are_returns
        if train is not None:
            _remember(self.train, (progress.env_steps, train))
        if test is not None and progress.tests != self._tests:
            _remember(self.test, (progress.env_steps, test))
        self._tests = progress.tests


class Chart:
    """Results over env steps in braille, each character of which is 2 by 4 dots."""

    def __init__(self, rates: Results, *, until: int, rows: int) -> None:
        self._rates = rates
        # At least to the last point, although a count of steps should never decrease.
        self._until = max(1, until, *(step for step, _ in (*rates.train[-1:], *rates.test[-1:])))
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        margin = len(_LABEL.format(""))
        columns = max(options.max_width - margin, 2)
        train = self._cells(self._rates.train, columns)
        test = self._cells(self._rates.test, columns)
        what = "return     " if self._rates.are_returns else "win rate   "
        yield Text.assemble((what, "dim"), ("━━ ", TRAIN), "training   ", ("━━ ", TEST), "greedy test")
        low, high = self._rates.bounds
        heights = {0: high, (self._rows - 1) / 2: (low + high) / 2, self._rows - 1: low}
        shown = _short if self._rates.are_returns else "{:.0%}".format
        labels = {row: shown(value) for row, value in heights.items()}
        for row in range(self._rows):
            line = Text(_LABEL.format(labels.get(row, "")), style="dim", no_wrap=True)
            for column in range(columns):
                below, above = train.get((column, row), 0), test.get((column, row), 0)
                # A character has the colour of the line with more dots in it.
                style = TRAIN if below.bit_count() > above.bit_count() else TEST
                line.append(chr(_BRAILLE | below | above) if below | above else " ", style=f"not dim {style}")
            yield line
        yield Text(" " * (margin - 1) + "└" + "─" * columns, style="dim", no_wrap=True)
        right = f"{self._until:,} env steps"
        yield Text(" " * margin + "0" + right.rjust(columns - 1), style="dim", no_wrap=True)

    def _cells(self, points: Sequence[tuple[int, float]], columns: int) -> dict[tuple[int, int], int]:
        """Return the characters that a line through `points` touches, by (column, row), with their set dots."""
        right, top = 2 * columns - 1, 4 * self._rows - 1
        low, high = self._rates.bounds
        dots = [
            (round(step / self._until * right), round((1 - min(max((value - low) / (high - low), 0.0), 1.0)) * top))
            for step, value in points
        ]
        cells: dict[tuple[int, int], int] = {}
        for (x0, y0), (x1, y1) in zip(dots, [*dots[1:], *dots[-1:]], strict=True):
            length = max(abs(x1 - x0), abs(y1 - y0), 1)
            for i in range(length + 1):
                x, y = round(x0 + (x1 - x0) * i / length), round(y0 + (y1 - y0) * i / length)
                cell = (x // 2, y // 4)
                cells[cell] = cells.get(cell, 0) | _DOTS[x % 2][y % 4]
        return cells


def _remember(points: list[tuple[int, float]], point: tuple[int, float]) -> None:
    if points and points[-1][0] == point[0]:
        points.pop()
    points.append(point)
    if len(points) > _REMEMBERED:
        del points[1:-1:2]  # the line keeps its ends and its shape


def _short(value: float) -> str:
    """Return a number in four characters if possible: `1.5k`, `-200`, `0.25`."""
    if abs(value) >= 999.5:
        return f"{value / 1000:.0f}k" if abs(value) >= 9950 or value < 0 else f"{value / 1000:.1f}k"
    return f"{value:.0f}" if abs(value) >= 9.95 or value == round(value) else f"{value:.1f}"
