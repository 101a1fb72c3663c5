"""The kinds of a text's parts, as the report is sent them."""

from meta_magic.view.source_payload import write_tokens

PLAIN, KEYWORD, STRING, NUMBER, COMMENT, NAME = range(6)


def test_each_part_of_a_line_is_of_a_kind_and_as_long_as_it_is():
    assert write_tokens("return 12") == [[KEYWORD, 6, PLAIN, 1, NUMBER, 2]]
    assert write_tokens("def f(x):  # why") == [
        [KEYWORD, 3, PLAIN, 1, NAME, 1, PLAIN, 6, COMMENT, 5]
    ]


def test_the_plain_end_of_a_line_is_left_out():
    assert write_tokens("x + y") == [[]]
    assert write_tokens("len(x)") == [[NAME, 3]]


def test_a_text_of_several_lines_is_a_stretch_of_each():
    assert write_tokens('"""a\n\nbc"""') == [[STRING, 4], [], [STRING, 5]]


def test_lengths_are_those_of_javascript():
    assert write_tokens("'🙂é'") == [[STRING, 5]]  # the emoji is two units


def test_what_is_no_python_is_plain():
    assert write_tokens("%%meta -o x\n!ls 'a\n1") == [[], [PLAIN, 4, STRING, 2], [3, 1]]


def test_half_a_character_is_one_unit():
    assert write_tokens("'\ud800'") == [[STRING, 3]]


def test_a_line_that_ends_as_on_windows_is_as_any_other():
    assert write_tokens("if x:\r\n  1") == [[KEYWORD, 2], [PLAIN, 2, NUMBER, 1]]
