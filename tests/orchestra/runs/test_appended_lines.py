"""What is appended to a file is read once, whole line by whole line."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestra.runs.appended_lines import AppendedLines

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=8)


@given(lines=st.lists(TEXT, max_size=12), cuts=st.lists(st.integers(0, 200), max_size=6))
def test_every_line_is_read_once_however_it_was_written(tmp_path_factory, lines: list[str], cuts: list[int]) -> None:
    path: Path = tmp_path_factory.mktemp("appended") / "file"
    data = "".join(f"{line}\n" for line in lines).encode()
    reader, read, begin = AppendedLines(path), [], 0
    assert reader.new() == []
    for end in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
        with path.open("ab") as file:
            file.write(data[begin:end])
        read += reader.new()
        begin = end
    assert read == lines


def test_of_more_than_the_most_the_newest_whole_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("".join(f"line {n}\n" for n in range(100)))
    reader = AppendedLines(path, most=20)
    assert reader.new() == ["line 98", "line 99"]
    with path.open("a") as file:
        file.write("line 100\nhalf")
    assert reader.new() == ["line 100"]


def test_a_file_that_is_replaced_by_a_shorter_one_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one\ntwo\n")
    reader = AppendedLines(path)
    assert reader.new() == ["one", "two"]
    path.write_text("new\n")
    assert reader.new() == ["new"]
