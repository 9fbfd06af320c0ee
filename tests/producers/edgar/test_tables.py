from __future__ import annotations

from producers.edgar.tables import COLUMNS_MOST, Cell, linearise


def _row(*texts: str) -> list[Cell]:
    return [Cell([text] if text else []) for text in texts]


def test_every_number_keeps_its_row_and_column() -> None:
    """Headers in two rows, one spanning, give each figure both of its names; signs and brackets join their number."""
    rows = [
        [Cell([]), Cell(["Three months ended"], colspan=6)],
        [Cell([]), Cell(["June 2026"], colspan=3), Cell(["June 2025"], colspan=3)],
        _row("Net sales:", "", "", "", "", "", ""),
        _row("Products", "$", "61,564", "", "$", "60,584", ""),
        _row("Loss", "", "(12", ")", "", "(8", ")"),
        _row("Margin", "", "41.5", "%", "", "40.1", "%"),
    ]
    assert linearise(rows) == [
        "Net sales:",
        "Products: Three months ended June 2026 $61,564; Three months ended June 2025 $60,584",
        "Loss: Three months ended June 2026 (12); Three months ended June 2025 (8)",
        "Margin: Three months ended June 2026 41.5%; Three months ended June 2025 40.1%",
    ]


def test_years_name_columns() -> None:
    """A row of years over figures is a header, although years are numbers."""
    assert linearise([_row("", "2026", "2025"), _row("Revenue", "10", "9")]) == ["Revenue: 2026 10; 2025 9"]


def test_headers_in_the_middle_replace_those_above() -> None:
    """A second block of headers names the figures below it, and no longer those of the first."""
    rows = [_row("", "2026", "2025"), _row("Cash", "10", "9"), _row("", "Level 1", "Level 2"), _row("Bonds", "5", "4")]
    assert linearise(rows) == ["Cash: 2026 10; 2025 9", "Bonds: Level 1 5; Level 2 4"]


def test_row_name_that_spans_rows() -> None:
    """A name with a rowspan stands before each of its rows, and the columns stay in place."""
    rows = [
        _row("", "", "Shares"),
        [Cell(["Class A"], rowspan=2), Cell(["Voting"]), Cell(["100"])],
        _row("Other", "200"),
    ]
    assert linearise(rows) == ["Class A Voting: Shares 100", "Class A Other: Shares 200"]


def test_layout_tables_are_text() -> None:
    """A table without figures gives its text: bullets with their words, cells side by side, paragraphs as they are."""
    rows = [
        _row("\u2022", "first point"),
        _row("Delaware", "001-12951"),
        [Cell(["A paragraph.", "And another."])],
    ]
    assert linearise(rows) == ["\u2022 first point", "Delaware | 001-12951", "A paragraph.", "And another."]


def test_numbered_lines_are_no_figures() -> None:
    """A number that opens a row of words, as on a 13G cover, makes no table of figures of it."""
    assert linearise([_row("1", "Names of reporting persons"), _row("2", "Member of a group")]) == [
        "1 | Names of reporting persons",
        "2 | Member of a group",
    ]


def test_hostile_spans_are_bounded() -> None:
    """Spans of a million columns cost no more than the bound of the grid."""
    rows = [[Cell(["a"], colspan=10**6), Cell(["b"], colspan=10**6)], _row("x", "1")]
    assert COLUMNS_MOST < 10**4
    assert linearise(rows) == ["a", "x: 1"]


def test_names_over_no_figure_are_not_lost() -> None:
    """The unit in the corner of a table and a name over an empty column stay, on a line before the figures."""
    rows = [_row("(In millions)", "2026", "Notes"), _row("Cash", "10", "")]
    assert linearise(rows) == ["(In millions) | Notes", "Cash: 2026 10"]


def test_empty_table() -> None:
    """A table of empty cells gives nothing."""
    assert linearise([_row("", ""), []]) == []
