"""A run can be watched on a terminal, in a file, and at its end; and watching never hurts it."""

import contextlib
import errno
import io
import os
import pty
import re
import select
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from components.reporting.chart import Results
from components.reporting.display import (
    Display,
    clock_time,
    plain_line,
    remaining_s,
    screen,
)
from components.reporting.progress import Progress

STARTING = Progress(
    state="starting",
    elapsed_s=0.0,
    env_steps=0,
    goal_steps=1_000_000,
    episodes=0,
    updates=0,
    env_steps_per_s=0.0,
    updates_per_s=0.0,
    train_win_rate=None,
    train_return=None,
    tests=0,
    test_win_rate=None,
    test_return=None,
    best_test_win_rate=None,
    best_test_return=None,
    loss=None,
    epsilon=None,
    params_lag=None,
    params_lags=(0,) * 7,
    dropped_episodes=0,
    busiest_actor=None,
    mailbox_depth=None,
    workers=0,
    restarts=0,
)
TRAINING = Progress(
    state="training",
    elapsed_s=751.4,
    env_steps=120_480,
    goal_steps=1_000_000,
    episodes=2_008,
    updates=3_012,
    env_steps_per_s=8_120.4,
    updates_per_s=12.34,
    train_win_rate=0.43,
    train_return=11.204,
    tests=1,
    test_win_rate=0.5,
    test_return=12.5,
    best_test_win_rate=0.5625,
    best_test_return=None,
    loss=0.01234,
    epsilon=0.4181,
    params_lag=3,
    params_lags=(900, 80, 0, 20, 0, 0, 0),
    dropped_episodes=0,
    busiest_actor="learner/trajectories",
    mailbox_depth=1_200,
    workers=4,
    restarts=1,
)
LINE = (
    "12:31  training  120,480/1,000,000 steps  8,120/s  episodes 2,008  train 43.0%  test 50.0% (best 56.2%)  "
    "return 11.20  updates 3,012 (12.3/s)  loss 0.01234  epsilon 0.42  lag 3  busiest learner/trajectories 1200  "
    "workers 4 (1 restarted)  left 01:48"
)


BALANCING = replace(
    TRAINING,
    train_win_rate=None,
    test_win_rate=None,
    best_test_win_rate=None,
    train_return=43.5,
    test_return=100.0,
    best_test_return=180.25,
)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]  # a property in TextIO

    def isatty(self) -> bool:
        return True


class Ascii(io.TextIOWrapper):
    """A file, or a terminal, that cannot write more than ASCII."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def written(self) -> str:
        self.flush()
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode("ascii")


class Leaving(io.StringIO):
    """A stream whose reader goes away after the first few writes; `written` counts the attempts."""

    def __init__(self, *, terminal: bool, after: int, error: OSError) -> None:
        super().__init__()
        self._terminal = terminal
        self._left = after
        self._error = error

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return super().write(text)


@pytest.fixture(autouse=True)
def terminal_of_80_by_24(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def rates(*progresses: Progress) -> Results:
    kept = Results()
    for progress in progresses:
        kept.add(progress)
    return kept


def lines_of(progress: Progress, chart: Results | None = None, *, width: int = 80, height: int = 23) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(screen(progress, "qmix_8m, seed 1", chart or Results(), width, height))
    return console.export_text().splitlines()


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def learning(count: int) -> Results:
    """A run that goes from no win to nothing but wins."""
    return rates(
        *(
            replace(TRAINING, env_steps=i * 120_480 // (count - 1), train_win_rate=i / (count - 1), test_win_rate=None)
            for i in range(count)
        )
    )


def test_a_plain_line_tells_everything_that_is_known() -> None:
    assert plain_line(TRAINING) == LINE


def test_a_plain_line_leaves_out_what_is_not_known_yet() -> None:
    assert plain_line(STARTING) == (
        "00:00  starting  0/1,000,000 steps  0.0/s  episodes 0  updates 0 (0.0/s)  workers 0"
    )


def test_where_nothing_can_be_won_returns_are_shown_in_the_place_of_win_rates() -> None:
    assert plain_line(BALANCING).startswith(
        "12:31  training  120,480/1,000,000 steps  8,120/s  episodes 2,008  return 43.50  test 100.00 (best 180.25)  "
    )
    chart = rates(*(replace(BALANCING, env_steps=1_000 * i, train_return=-50.0 + 100 * i) for i in range(4)))
    shown = lines_of(BALANCING, chart)
    assert not [line for line in shown if "win rate" in line]
    assert any(line.startswith("test return") and "100.00" in line for line in shown)
    assert any(line.startswith("best test") and "180.25" in line for line in shown)
    labels = [line.partition("│")[0].strip() for line in shown if "│" in line]
    assert [label for label in labels if label] == ["250", "100", "-50"]
    (legend,) = (line for line in shown if "greedy test" in line)
    assert legend.startswith("return ")


def test_the_chart_begins_anew_when_the_first_episode_is_won() -> None:
    chart = rates(BALANCING, replace(BALANCING, env_steps=130_000, train_win_rate=0.25, test_win_rate=0.5))
    assert (chart.train, chart.bounds) == ([(130_000, 0.25)], (0.0, 1.0))


def test_a_summary_without_win_rates_has_the_returns() -> None:
    file = io.StringIO()
    Display(file).finish(BALANCING)
    assert "training     return 43.50\n" in file.getvalue()
    assert "greedy test  return 100.00 (the best test: 180.25)\n" in file.getvalue()


def test_a_file_gets_a_line_at_most_every_so_many_seconds() -> None:
    file = io.StringIO()
    display = Display(file, every_s=10)
    for elapsed in (0.0, 1.0, 9.9, 10.0, 10.5, 35.0, 36.0, 45.0):
        display.show(replace(TRAINING, elapsed_s=elapsed))
    assert [line[:5] for line in file.getvalue().splitlines()] == ["00:00", "00:10", "00:35", "00:45"]


def test_a_file_is_told_in_whole_lines_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # set by many a CI, where the stream is a file nevertheless
    file = io.StringIO()
    with contextlib.closing(Display(file)) as display:
        display.show(TRAINING)
        assert file.getvalue() == LINE + "\n"
        display.finish(TRAINING)
    assert "\x1b" not in file.getvalue()


def test_time_left_comes_from_the_goal_and_the_recent_rate() -> None:
    assert remaining_s(replace(TRAINING, env_steps=400, goal_steps=1000, env_steps_per_s=20.0)) == 30.0
    assert remaining_s(replace(TRAINING, env_steps=1000, goal_steps=1000, env_steps_per_s=0.0)) == 0.0
    assert remaining_s(replace(TRAINING, env_steps=1010, goal_steps=1000)) == 0.0
    assert remaining_s(STARTING) is None


def test_times_are_written_as_on_a_clock() -> None:
    assert [clock_time(seconds) for seconds in (0, 59.9, 751, 3_723, 93_784)] == [
        "00:00",
        "00:59",
        "12:31",
        "1:02:03",
        "1d 02:03:04",
    ]


def test_the_screen_shows_every_figure() -> None:
    lines = lines_of(TRAINING)

    assert re.fullmatch(r"qmix_8m, seed 1 +training", lines[0])
    assert re.fullmatch(r"━{9}╸ *", lines[1])  # an eighth
    assert re.fullmatch(r"120,480 of 1,000,000 env steps, 12\.0% +12:31 gone   01:48 left", lines[2])
    assert [re.sub(r" +", " ", line).strip() for line in lines[4:10]] == [
        "train win rate 43.0% updates 3,012 env steps/s 8,120",
        "test win rate 50.0% updates/s 12.3 episodes 2,008",
        "best test 56.2% loss 0.01234 workers 4",
        "train return 11.20 epsilon 0.418 restarts 1",
        "test return 12.50 parameter lag █▁·▁··· 3",
        "fullest mailbox 1,200 waiting for learner/trajectories",
    ]


def test_the_screen_shows_a_dash_for_what_is_not_known_yet() -> None:
    text = "\n".join(lines_of(STARTING))
    assert re.search(r"train win rate +- ", text)
    assert re.search(r"loss +- ", text)
    assert re.search(r"00:00 gone   - left", text)
    assert "mailbox" not in text


@pytest.mark.parametrize(("width", "height"), [(40, 10), (60, 24), (80, 24), (80, 30), (120, 40), (200, 60)])
@pytest.mark.parametrize("progress", [STARTING, TRAINING], ids=["starting", "training"])
def test_no_line_is_longer_than_the_terminal_is_wide(progress: Progress, width: int, height: int) -> None:
    long_named = replace(progress, busiest_actor=progress.busiest_actor and "workers-0/" + "x" * 300)
    lines = lines_of(long_named, learning(50), width=width, height=height - 1)
    assert max(map(len, lines)) <= width
    if height >= 24:
        assert len(lines) <= height - 1


def test_the_chart_rises_with_the_win_rate() -> None:
    lines = lines_of(TRAINING, learning(200))

    (top,) = (line for line in lines if line.startswith("100% │"))
    (middle,) = (line for line in lines if line.startswith(" 50% │"))
    (bottom,) = (line for line in lines if line.startswith("  0% │"))

    def ink(line: str) -> list[float]:
        drawn = [i for i, character in enumerate(line[6:]) if "\u2800" < character <= "\u28ff"]
        return [drawn[0] / 74, drawn[-1] / 74]

    assert ink(bottom)[0] == 0.0
    assert ink(bottom)[1] < 0.2
    assert 0.4 < ink(middle)[0] < ink(middle)[1] < 0.6
    assert ink(top)[0] > 0.8
    assert ink(top)[1] == 73 / 74
    assert lines[-1].split() == ["0", "120,480", "env", "steps"]


def test_there_is_no_chart_before_there_is_a_win_rate_or_where_there_is_no_room() -> None:
    assert not any("│" in line for line in lines_of(STARTING))
    assert any("│" in line for line in lines_of(TRAINING, learning(9)))
    assert not any("│" in line for line in lines_of(TRAINING, learning(9), height=12))


def test_a_test_is_one_point_however_often_it_is_reported() -> None:
    tested = [replace(TRAINING, env_steps=steps) for steps in (10, 20, 30)]
    again = [replace(TRAINING, env_steps=steps, tests=2) for steps in (40, 50)]  # with the very same figures
    assert rates(*tested, *again).test == [(10, 0.5), (40, 0.5)]


def test_a_long_run_keeps_the_ends_of_its_curve_and_a_bounded_number_of_points() -> None:
    kept = rates(*(replace(TRAINING, env_steps=i, train_win_rate=i / 20_000) for i in range(20_000)))
    assert kept.train[0] == (0, 0.0)
    assert kept.train[-1] == (19_999, 19_999 / 20_000)
    assert 500 < len(kept.train) <= 2048
    assert kept.train == sorted(kept.train)


def test_a_terminal_is_drawn_on_and_given_back() -> None:
    terminal = Terminal()
    stdout, stderr = sys.stdout, sys.stderr
    with contextlib.closing(Display(terminal, title="qmix_8m")) as display:
        display.show(STARTING)
        display.show(TRAINING)
        assert "120,480 of 1,000,000 env steps" in without_codes(terminal.getvalue())
        assert terminal.getvalue().count("\x1b[?25l") == 1  # the cursor is hidden
        assert terminal.getvalue().count("\x1b[?25h") == 0
    assert terminal.getvalue().count("\x1b[?25h") == 1
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    display.close()  # twice is once


def test_the_terminal_is_given_back_also_when_the_run_fails() -> None:
    def run() -> None:
        with contextlib.closing(Display(terminal)) as display:
            display.show(TRAINING)
            raise KeyboardInterrupt

    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt):
        run()
    assert terminal.getvalue().count("\x1b[?25h") == 1


ON_A_TERMINAL = """
import contextlib, fcntl, signal, sys, termios
from dataclasses import replace
from components.reporting.display import Display
from components.reporting.progress import Progress

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
kinds = Progress.__annotations__.items()
known = {"state": "training", "sync": {}}
progress = Progress(**{name: None if "None" in str(kind) else 1 for name, kind in kinds} | known)
with contextlib.closing(Display(sys.stdout)) as display:
    display.show(progress)
    print("up", flush=True)
    signal.sigwait({signal.SIGINT})
print("over", flush=True)
sys.stdin.readline()
"""


def test_what_is_typed_does_not_show_on_the_screen_and_shows_again_afterwards() -> None:
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL], stdin=inner, stdout=inner, stderr=inner, start_new_session=True
    )
    os.close(inner)

    def until(text: str) -> str:
        seen = ""
        while text not in seen:
            assert select.select([terminal], [], [], 60)[0], seen
            seen += os.read(terminal, 4096).decode(errors="replace")
        return seen

    def is_shown() -> bool:
        return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)

    try:
        assert is_shown()
        until("up")
        assert not is_shown()
        os.write(terminal, b"\x03")
        assert "^C" not in until("over")
        assert is_shown()
    finally:
        process.kill()
        process.wait(10)
        os.close(terminal)


def test_what_is_printed_meanwhile_stays_above_the_screen() -> None:
    terminal = Terminal()
    with contextlib.closing(Display(terminal)) as display:
        display.show(TRAINING)
        print("a warning", file=sys.stderr)
        display.show(TRAINING)
    text = without_codes(terminal.getvalue())
    assert text.index("a warning\n") < text.rindex("120,480 of")


@pytest.mark.parametrize("how", ["dumb", "ascii"])
def test_a_terminal_that_cannot_show_a_screen_gets_lines(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "dumb":
        monkeypatch.setenv("TERM", "dumb")
        terminal = Terminal()
        Display(terminal).show(TRAINING)
        assert terminal.getvalue() == LINE + "\n"
    else:
        narrow = Ascii(terminal=True)
        Display(narrow).show(TRAINING)
        assert without_codes(narrow.written()) == LINE + "\n"


def test_the_summary_says_how_the_run_ended_and_where_its_curve_is() -> None:
    file = io.StringIO()
    done = replace(TRAINING, state="done", env_steps=1_000_000, elapsed_s=2_000.0)
    path = Path("runs") / ("long" * 60) / "curve.png"

    Display(file, title="qmix_8m, seed 1").finish(done, ["checkpoint   best"], curve=path)

    assert file.getvalue().splitlines() == [
        "qmix_8m, seed 1: done after 33:20",
        "  env steps    1,000,000 of 1,000,000, 500/s on average",
        "  episodes     2,008",
        "  updates      3,012",
        "  training     43.0% won, return 11.20",
        "  greedy test  50.0% won, return 12.50 (the best test: 56.2%)",
        "  restarts     1 of worker processes that died",
        "  checkpoint   best",
        f"  curve        {path}",
    ]


def test_a_run_that_ended_at_once_has_a_summary_too() -> None:
    file = io.StringIO()
    Display(file).finish(STARTING)
    assert file.getvalue().splitlines() == [
        "the run: starting after 00:00",
        "  env steps    0 of 1,000,000, 0.0/s on average",
        "  episodes     0",
        "  updates      0",
    ]


def test_the_summary_takes_the_place_of_the_screen() -> None:
    terminal = Terminal()
    with contextlib.closing(Display(terminal, title="qmix_8m")) as display:
        display.show(TRAINING)
        display.finish(replace(TRAINING, state="done"), curve=Path("curve.png"))
    codes_and_text = terminal.getvalue()
    after_the_screen = codes_and_text[codes_and_text.rindex("env steps/s") :]
    assert after_the_screen.count("\x1b[2K") >= 10  # its rows are erased
    assert codes_and_text.index("\x1b[?25h") < codes_and_text.index("qmix_8m\x1b[0m: done after 12:31")
    assert without_codes(codes_and_text).endswith("  curve        curve.png\n")


def test_a_name_that_the_stream_cannot_write_does_not_stop_the_summary() -> None:
    narrow = Ascii(terminal=False)
    Display(narrow, title="Zürich").finish(STARTING, curve=Path("läufe/curve.png"))
    text = narrow.written()
    assert text.startswith("Z?rich: starting")
    assert text.endswith("l?ufe/curve.png\n")


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(errno.EPIPE, "Broken pipe"), OSError(errno.EIO, "Input/output error")],
    ids=["broken pipe", "hung up"],
)
def test_a_reader_that_goes_away_ends_the_showing_and_not_the_run(terminal: bool, error: OSError) -> None:
    stream = Leaving(terminal=terminal, after=1, error=error)
    stdout = sys.stdout
    with capture_logs() as logged, contextlib.closing(Display(stream, every_s=1)) as display:
        for second in range(5):
            display.show(replace(TRAINING, elapsed_s=float(second)))
        display.finish(TRAINING)

    assert [line["event"] for line in logged] == ["the display's stream is closed; the run continues"]
    assert logged[0]["log_level"] == "warning"
    assert error.strerror is not None
    assert error.strerror in logged[0]["error"]
    assert sys.stdout is stdout


def test_a_notice_is_shown_for_as_long_as_it_is_set_and_at_the_end() -> None:
    file, terminal = io.StringIO(), Terminal()
    for stream in (file, terminal):
        with contextlib.closing(Display(stream, title="qmix_8m", every_s=0)) as display:
            display.show(STARTING)
            assert "unencrypted" not in stream.getvalue()
            display.notice = "unencrypted"
            for elapsed in (20.0, 30.0):
                display.show(replace(TRAINING, elapsed_s=elapsed))
            display.finish(TRAINING)
    assert [("unencrypted" in line) for line in file.getvalue().splitlines()[:3]] == [False, True, True]
    assert file.getvalue().splitlines()[3:].count("  unencrypted") == 1
    assert without_codes(terminal.getvalue()).count("qmix_8m   unencrypted") >= 2
