from __future__ import annotations

from measure.bench.report import Table, page, with_sections

A, B = (Table(title, f"of {title}", ("x",), (("1",),)) for title in ("First", "Second"))


def test_sections_that_are_measured_again_take_their_old_place() -> None:
    again = Table("First", "once more", ("x",), (("2",),))
    text = with_sections(page([A, B]), [again])
    assert text.index("once more") < text.index("of Second")
    assert "of First" not in text
    assert text.startswith("# Measured")


def test_a_section_that_is_new_comes_last() -> None:
    text = with_sections(page([A]), [B])
    assert text.index("of First") < text.index("of Second")
    assert with_sections(text, [B]) == text
