"""A logger of one's own: `orchestra run qmix_8m --track own_logger.py:BestOnly`."""

from collections.abc import Mapping

from orchestra import RunDirectory


class BestOnly:
    """Keeps a line for each test that was better than all before."""

    def __init__(self, run: RunDirectory, resumes_at: int | None) -> None:
        self._file = (run.path / "best.txt").open("a", encoding="utf-8")
        self._best = float("-inf")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Take figures."""
        earned = figures.get("test_return", self._best)
        if earned > self._best:
            self._best = earned
            print(f"{step:,} steps: {earned:.2f}", file=self._file, flush=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
