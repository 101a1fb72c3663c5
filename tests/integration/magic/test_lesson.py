"""``%%meta --teach`` in a real shell: what is shown, and what the cell leaves."""


def read_shown(shell):
    """Return the texts that a shell displayed."""
    return [output["data"]["text/plain"] for output in shell.display_pub.outputs]


def test_a_lesson_is_shown_instead_of_the_report(shell):
    shell.run_cell("%%meta --teach\nx = torch.ones(3, 4)\ny = x.sum(0)")
    (shown,) = read_shown(shell)
    assert shown == "line 3: y = x.sum(0)\n  x (3, 4)\n  What is the shape of y?"
    assert shell.user_ns["y"].shape == (4,)


def test_it_names_variables_of_earlier_cells(shell):
    shell.run_cell("%%meta -q\nx = torch.ones(3, 4)")
    shell.run_cell("%%meta --teach\ny = x.sum(0)")
    assert "  x (3, 4)\n" in read_shown(shell)[0]


def test_a_failed_cell_has_the_lesson_of_what_ran(shell):
    shell.run_cell("%%meta --teach\ny = torch.ones(3, 4).sum(0)\ny @ torch.ones(3)")
    assert any("What is the shape of y?" in shown for shown in read_shown(shell))


def test_quiet_shows_no_lesson(shell):
    shell.run_cell("%%meta --teach -q\ny = torch.ones(3, 4).sum(0)")
    assert read_shown(shell) == []
