"""Lessons: the question of a line, its answer by hand, the names in its picture."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import record
from meta_magic.teach.lessons import write_lesson


@pytest.fixture(scope="module")
def steps():
    """The steps of one program by the name that the line assigns."""
    with warnings.catch_warnings(), record(as_device="cpu") as trace:
        warnings.simplefilter("ignore")
        a, b = torch.randn(3), torch.randn(4)
        x = a[:, None] + b
        q, k = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
        scores = q @ k.transpose(-2, -1)
        pairs = torch.einsum("bqd,bkd->bqk", q, k)
        m = torch.arange(12).view(3, 4)
        cut = m.view(4, 3)
        turned = m.permute(1, 0)
        flat = m.T.reshape(2, 6)
        column = m[:, 1]
        fc = nn.Linear(4, 5)
        z = fc(q)
        image = nn.Conv2d(3, 8, 3, stride=2)(torch.randn(1, 3, 9, 9))
        out, _ = nn.LSTM(4, 6, batch_first=True)(q)
        late, _ = nn.GRU(4, 6)(q)
        weights = scores.softmax(-1)
        gap = functional.smooth_l1_loss(b[:, None], b + 1)
        mixed = functional.scaled_dot_product_attention(q, k, k)
        center = x.mean(1, keepdim=True)
        joined = torch.cat([a, b])
        same = x + x
        kept = scores.masked_fill(torch.ones(3, 5).bool(), 0.0)
        spread = x - x.mean(1, keepdim=True)
        total = x.sum()
        for _ in range(3):
            again = q.flatten(1)

        def multiply(u, w):
            return u @ w

        product = multiply(torch.randn(2, 7), torch.randn(7, 3))
    made = (pairs, cut, turned, flat, column, z, image, out, late, weights, gap)
    more = (mixed, center, joined, same, total, kept, spread)
    assert all(one is not None for one in (*made, *more))
    assert (again.ndim, product.shape) == (2, (2, 3))
    return {step.code.split(" = ")[0]: step for step in trace.teach().steps}


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("x", (3, 4)),
        ("scores", (2, 3, 5)),
        ("pairs", (2, 3, 5)),
        ("m", 4),  # [1, 0] of 3 rows of 4
        ("cut", 3),  # [1, 0] of 4 rows of 3
        ("turned", 1),  # [1, 0] is [0, 1] of m
        ("flat", "a copy"),
        ("column", 5),  # [1] is [1, 1] of m
        ("z", (2, 3, 5)),
        ("image", (1, 8, 4, 4)),  # (9 - 3) // 2 + 1
        ("out, _", 1),
        ("late, _", 0),
        ("weights", 2),
        ("gap", 16),  # (4, 1) and (4,)
        ("mixed", 5),
        ("center", (3, 1)),
        ("kept", 2),  # of (2, 3, 5)
        ("spread", (3, 4)),
        ("joined", (7,)),
        ("return u @ w", (2, 3)),
    ],
)
def test_a_line_has_the_question_of_its_kind(steps, line, answer):
    assert steps[line].question.answer == answer


def test_what_changes_no_shape_has_no_question(steps):
    assert not {"same", "total", "a, b", "fc"} & set(steps)


def test_a_line_names_the_variables_that_it_reads_and_no_part_of_the_answer(steps):
    assert steps["x"].given == (("a", (3,)), ("b", (4,)))
    assert steps["return u @ w"].given == (("u", (2, 7)), ("w", (7, 3)))


def test_a_picture_names_operands_as_the_code_does(steps):
    assert [name for name, _ in steps["scores"].inputs] == ["q", "k.transpose(-2, -1)"]
    assert [name for name, _ in steps["z"].inputs] == ["q", "weight", "bias"]
    assert steps["scores"].output[0] == "scores"


def test_a_wrong_number_is_explained_by_the_reading_that_gives_it(steps):
    # Row by row, [1, 0] of (4, 3) is 3; transposed it is 1.
    assert "row by row" in steps["turned"].question.whys["3"]
    assert "column by column" in steps["cut"].question.whys["1"]


def test_a_line_draws_what_gives_its_result(steps):
    assert steps["spread"].picture.kind == "broadcast"
    names = [name for name, _ in steps["spread"].inputs]
    assert names == ["x", "x.mean(1, keepdim=True)"]


def test_the_reason_of_a_number_is_its_way_through_memory(steps):
    # Strides (1, 4): one step along dimension 0.
    assert "1·1 + 0·4 = 1" in steps["turned"].question.right


def test_a_loop_is_one_step(steps):
    assert "again" in steps


def test_a_cell_without_tensors_has_an_empty_lesson():
    with record() as trace:
        pass
    lesson = trace.teach()
    assert lesson.steps == ()
    assert "no line" in str(lesson)
    assert "no line" in lesson._repr_html_()


def test_a_failed_cell_has_its_steps_and_the_explanation():
    with pytest.raises(RuntimeError), record(as_device="cpu") as trace:
        x = torch.ones(2, 3).sum(0)
        x @ torch.ones(2)
    lesson = trace.teach()
    assert len(lesson.steps) == 1
    assert "line" in lesson.failure


def test_a_module_of_modules_has_a_question_and_no_picture():
    with record(as_device="cpu") as trace:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
        y = model(torch.ones(2, 3))
        z = model[0](torch.ones(2, 3))
    assert (y.shape, z.shape) == ((2, 5), (2, 4))
    of_model, of_layer = trace.teach().steps
    assert (of_model.question.answer, of_layer.question.answer) == ((2, 5), (2, 4))
    assert "0 (2, 4), 1 (2, 5)" in of_model.question.right
    assert (of_model.picture, of_layer.picture.kind) == (None, "product")
    assert write_lesson(trace.teach())["steps"][0]["call"] is None


def test_a_long_cell_has_forty_steps(tmp_path):
    lines = [f"x{i} = torch.ones({i + 2}, 3).sum(0)" for i in range(50)]
    code = compile("\n".join(lines), str(tmp_path / "cell.py"), "exec")
    (tmp_path / "cell.py").write_text("\n".join(lines), "utf-8")
    with record(as_device="cpu") as trace:
        exec(code, {"torch": torch})
    assert len(trace.teach().steps) <= 40


def test_a_saved_lesson_of_ten_steps_is_small():
    with record(as_device="cpu") as trace:
        x = torch.ones(4, 8)
        x1 = x.T
        x2 = x1.reshape(2, 16)
        x3 = x2.sum(0)
        x4 = x3[:, None] * x3
        x5 = x4.softmax(0)
        x6 = x5 @ x4
        x7 = torch.cat([x6, x5])
        x8 = x7[:, ::2]
        x9 = x8.mean(1, keepdim=True)
        x10 = x9 + x8
    assert x10.shape == (32, 8)
    assert len(trace.teach().steps) == 10
    assert len(trace.teach()._repr_html_().encode()) < 60_000


def test_the_payload_has_plain_values(steps):
    with record(as_device="cpu") as trace:
        torch.ones(2, 3).T.contiguous()
    (step,) = write_lesson(trace.teach())["steps"]
    assert step["question"]["answer"] == "a copy"
    assert step["call"]["picture"]["kind"] == "order"


def test_operands_of_a_layer_and_of_a_call_are_in_the_order_of_the_code():
    with record() as trace:
        table, ids = torch.ones(7, 3), torch.zeros(5, dtype=torch.long)
        layer = nn.Linear(4, 2)
        x = torch.ones(5, 4)
        y = layer(x)
        z = nn.functional.linear(x, torch.ones(3, 4), torch.ones(3))
        w = nn.functional.embedding(ids, table)
    shown = str(trace.teach())
    assert "y = layer(x)\n  x (5, 4)\n" in shown
    assert "table (7, 3)" in shown
    assert "ids (5,)" in shown
    assert y.shape[0] == z.shape[0] == w.shape[0]


@pytest.fixture(scope="module")
def others():
    """The steps of lines whose last call is not what they assign."""
    with record(as_device="cpu") as trace:

        def outer(t):
            return t[:, None] * t

        a, b = torch.ones(2, 3), torch.ones(3)
        z = outer(a + b) * 2
        heads, other = (
            t.view(3, 2, 2).transpose(0, 1) for t in (torch.ones(3, 4),) * 2
        )
        scores = heads @ other.mT
        second = torch.arange(12).split(4)[1]
        parts = a.split([1, 2], dim=1)
        x = torch.ones(1000, 1000)
        x = x[::2, 1:]
        fc, targets = nn.Linear(3, 1), torch.ones(16)
        loss = ((fc(torch.ones(16, 3)) - targets) ** 2).mean()
        mixed, _ = nn.MultiheadAttention(4, 2, batch_first=True)(
            *[torch.ones(1, 5, 4)] * 3
        )
        sums = torch.addmm(b, torch.ones(2, 4), torch.ones(4, 3))
        picked = a.gather(1, torch.tensor([[0], [1]]))
        late = nn.LSTM(3, 6, batch_first=True)(torch.ones(4, 7, 3))[0]
        last = late[:, -1]
    made = (z, scores, second, *parts, x, loss, mixed, sums, picked, last)
    assert all(one is not None for one in made)
    return {step.code.split(" = ")[0]: step for step in trace.teach().steps}


@pytest.mark.parametrize(
    ("line", "text", "answer"),
    [
        ("z", "shape of a + b?", (2, 3)),
        ("heads, other", "at heads[1, 0, 0]?", 2),  # [0, 1, 0] of (3, 2, 2)
        ("scores", "shape of scores?", (2, 3, 3)),
        ("second", "at second[1]?", 5),  # from 4 on
        ("parts", "at parts[0][1, 0]?", 3),  # [1, 0] of (2, 3)
        ("x", "at the new x[1, 0]?", 2001),  # [2, 1] of rows of 1000
        ("loss", "does loss add up", 256),  # (16, 1) and (16,)
        ("mixed, _", "shape of mixed?", (1, 5, 4)),
        ("sums", "shape of sums?", (2, 3)),
    ],
)
def test_a_question_names_what_it_asks_about(others, line, text, answer):
    question = others[line].question
    assert text in question.text
    assert question.answer == answer


def test_a_window_knows_the_windows_before_it():
    with record(as_device="cpu") as trace:
        image = torch.ones(1, 3, 28, 28)
        first = nn.Conv2d(3, 8, 3, stride=2)(image).relu()
        second = nn.Conv2d(8, 16, 3, padding=1)(first)
        pooled = functional.max_pool2d(second, 2)
        wide = nn.Conv1d(2, 2, 3)(torch.ones(1, 2, 9).softmax(-1)).softmax(-1)
        last = nn.Conv1d(2, 2, 3)(wide)
    assert (pooled.shape[-1], last.shape[-1]) == (6, 5)
    steps = trace.teach().steps
    names = [[name for _, (name, _), _ in step.layers] for step in steps]
    # After a softmax an element comes from a whole line.
    assert names == [[], ["image"], ["first", "image"], [], []]
    written = write_lesson(trace.teach())["steps"][2]["call"]["before"]["before"]
    assert written["inputs"][0]["name"] == "image"
    assert written["outputs"][0]["geometry"]["shape"] == (1, 8, 13, 13)


def test_a_name_has_the_shape_that_it_has_in_this_line(others):
    assert others["scores"].given == (("heads", (2, 3, 2)), ("other", (2, 3, 2)))
    assert others["x"].given == (("x", (1000, 1000)),)


def test_what_is_added_to_a_product_is_not_summed(others):
    assert "(2, 4) and (4, 3) give (2, 3); summed: 4." in others["sums"].question.right
    assert next(name for name, _ in others["sums"].inputs) == "b"


def test_a_number_of_what_does_not_lie_row_by_row_is_counted_by_sizes(others):
    # An LSTM's output lies time by time; [1, 6, 0] of (4, 7, 6) is 42 + 36.
    assert (
        "late[1, 6, 0], number 1·42 + 6·6 + 0·1 = 78" in others["last"].question.right
    )
