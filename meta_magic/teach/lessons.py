"""A lesson: a question for each line of a recorded cell, and the picture that answers.

``%%meta --teach`` shows the lesson of a cell, ``trace.teach()`` that of any trace. The
reader predicts a shape, or which number a view has at an index, and has one try; then
the page says what kind of mistake it was, and draws the call. Read :func:`build_lesson`
first, and ``QUESTIONS``.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import torch

from meta_magic.teach.lines import (
    SHAPE_WHYS,
    Group,
    Line,
    Shape,
    choose_element,
    describe_address,
    describe_index,
    read_lines,
    to_address,
    to_number,
)
from meta_magic.trace.calls import OpCall, TensorMetadata
from meta_magic.trace.summary import describe_failure
from meta_magic.trace.units import format_shape
from meta_magic.view.pictures import (
    FAMILIES,
    Picture,
    PicturedCall,
    broadcast,
    find_picture,
    find_previous_windows,
    read_terms,
)

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

MOST_STEPS: Final = 40
MOST_PARTS: Final = 8
"""Parts of a module whose shapes are said."""


class Question(NamedTuple):
    """What a reader predicts.

    Attributes:
        kind: ``shape``, ``number`` or ``choice``.
        answer: Sizes, a number, or the option that is right.
        options: Of a choice.
        whys: What to say after a wrong try. Its keys are ``rank``, ``order`` and
            ``size`` for a shape; else the wrong answer as text, or ``other``.
        right: What to say after a right answer, or when it is shown.
        at: The index that is asked about, at which the picture opens.
    """

    kind: str
    text: str
    answer: Shape | int | str
    whys: Mapping[str, str]
    options: tuple[str, ...] = ()
    right: str = ""
    at: Shape = ()


Drawn: TypeAlias = tuple[str, TensorMetadata]
Layer: TypeAlias = tuple[Picture, Drawn, Drawn]


class LessonLine(NamedTuple):
    """One line of a lesson.

    Attributes:
        given: The variables that the line reads, with their shapes.
        picture: None for a module of modules, which is no single call.
        inputs: What is drawn, with the names that the code gives it; ``output`` too.
        layers: The windows before a window, each with its picture, input and output.
    """

    line: int
    code: str
    given: tuple[tuple[str, Shape], ...]
    question: Question
    picture: Picture | None
    inputs: tuple[Drawn, ...]
    output: Drawn
    layers: tuple[Layer, ...] = ()


class Lesson(NamedTuple):
    """The steps of a cell, and why it failed, if it did.

    Example:
        >>> with record() as trace:
        ...     x = torch.ones(3, 4)
        ...     y = x.sum(0)
        >>> print(trace.teach())
        line 3: y = x.sum(0)
          x (3, 4)
          What is the shape of y?
    """

    steps: tuple[LessonLine, ...]
    failure: str = ""

    def __str__(self) -> str:
        lines = [text for step in self.steps for text in describe_step(step)]
        failure = self.failure.splitlines()
        return "\n".join([*lines, *failure]) or "no line of this cell has a question"

    def __repr__(self) -> str:
        return str(self)  # what a terminal shows of the last expression of a cell

    def _repr_html_(self) -> str:
        from meta_magic.view.page import render_lesson  # noqa: PLC0415  when it is shown

        return render_lesson(write_lesson(self), str(self))


def describe_step(step: LessonLine) -> Iterator[str]:
    """Yield the lines of a step as text, without its answer."""
    yield f"line {step.line}: {step.code}"
    if step.given:
        yield "  " + ", ".join(f"{n} {format_shape(s)}" for n, s in step.given)
    yield f"  {step.question.text}"


def build_lesson(trace: "Trace") -> Lesson:
    """Return the lesson of a trace: its first lines that are worth a question."""
    previous = find_previous_windows(trace)
    before = {n: trace.ops[call] for n, call in previous.items()}
    made = (make_step(line, before) for line in read_lines(trace) if line.groups)
    steps = tuple(step for step in made if step is not None)[:MOST_STEPS]
    failure = describe_failure(trace) or trace.error or ""
    if failure and trace.explanation is not None and not trace.explanation.is_silent:
        failure = trace.explanation.text
    return Lesson(steps, failure)


class Drawing(NamedTuple):
    """A call that can be asked about: its picture, inputs and output."""

    picture: Picture
    inputs: Sequence[TensorMetadata]
    output: TensorMetadata
    group: Group


def make_step(line: Line, before: Mapping[int, OpCall]) -> LessonLine | None:
    """Return the step of a line; None if nothing in it is worth a question.

    Args:
        line: The line.
        before: The window before each window, by the number of the call.
    """
    drawing = choose_drawing(line)
    module = drawing and drawing.group.module
    shapes = [t.shape for _, t in module.outputs] if module else []
    if drawing is None or (module and drawing.output.shape not in shapes):
        return make_module_step(line)
    question = QUESTIONS.get(drawing.picture.kind, ask_shape)(line, drawing)
    if question is None:
        return None
    names = line.names
    title = names.get(drawing.output.tensor_id, "result")
    is_last = drawing.output.shape == line.groups[-1].output.shape
    if line.target and is_last and drawing.group is line.groups[-1]:
        title = line.title
    named = [
        (names.get(t.tensor_id, name_parameter(drawing, n)), t)
        for n, t in enumerate(drawing.inputs)
    ]
    layers = tuple(list_layers(line, drawing, before))
    ends = tuple(named), (title, drawing.output), layers
    return LessonLine(*describe_line(line), question, drawing.picture, *ends)


def list_layers(
    line: Line, drawing: Drawing, before: Mapping[int, OpCall]
) -> Iterator[Layer]:
    """Yield the windows before a window, the newest first."""
    at = next((op for op in drawing.group.ops if op.inputs == drawing.inputs), None)
    while drawing.picture.kind == "window" and at is not None:
        at = before.get(at.index)
        picture = at and find_picture(at)
        if at and picture:
            name = line.names.get(at.inputs[0].tensor_id, "input")
            yield picture, (name, at.inputs[0]), ("", at.outputs[0])


def describe_line(line: Line) -> tuple[int, str, tuple[tuple[str, Shape], ...]]:
    """Return the number, the code and the variables of a line."""
    code = line.code.split("\n")[0] + (" …" if "\n" in line.code else "")
    return line.number, code, tuple(line.shapes.items())


def make_module_step(line: Line) -> LessonLine | None:
    """Return the step of a line that calls a module of modules: it has no picture."""
    module, parts = line.groups[-1].module, line.groups[-1].parts
    is_unpacked = isinstance(getattr(line.statement, "targets", [0])[0], ast.Tuple)
    if module is None or not (len(module.outputs) == 1 or is_unpacked):
        return None
    made = module.outputs[0][1]
    named = [
        f"{(part.module or part.class_name).rpartition('.')[2]} "
        + " and ".join(format_shape(tensor.shape) for _, tensor in part.outputs)
        for part in parts[:MOST_PARTS]
    ]
    more = ["…"] if len(parts) > MOST_PARTS else []
    given = ", ".join(format_shape(tensor.shape) for _, tensor in module.inputs)
    right = f"{module.class_name} was given {given}."
    if parts:
        right = f"Its parts give: {', '.join([*named, *more])}."
    text = f"What is the shape of {line.title}?"
    question = Question("shape", text, made.shape, {}, right=right)
    return LessonLine(*describe_line(line), question, None, (), (line.title, made))


def name_parameter(drawing: Drawing, number: int) -> str:
    """Return what an operand without a name is called."""
    kind, group = drawing.picture.kind, drawing.group
    known: Sequence[str] = ()
    if kind == "window" or (kind == "product" and group.function == "linear"):
        known = ("input", "weight", "bias")
    elif kind == "product":
        terms = drawing.picture.terms.partition("->")[0].split(",")
        both = iter(("input", "weight") if group.module else ("left", "right"))
        known = ["bias" if term == "*" else next(both, "right") for term in terms]
    elif kind == "pick":
        known = ("weight" if group.function == "embedding" else "input", "index")
    return known[number] if number < len(known) else f"input {number}"


VIEWS: Final = frozenset({"memory", "order"})
PRIORITY: Final = (
    *("loss", "attention", "recurrent", "product", "window", "line", "reduction"),
    *("join", "pick", "broadcast", "copy"),
)


def choose_drawing(line: Line) -> Drawing | None:
    """Return the call of a line that its question is about.

    The views at its end, taken together; else the one that teaches most.
    """
    drawings = [d for d in map(draw_group, line.groups) if d is not None]
    end = line.groups[-1]
    last = drawings[-1:] if drawings and drawings[-1].group is end else []
    if end.module and any(
        g.module and g.module.index == end.module.index for g in line.groups[:-1]
    ):
        last = []  # the end of a module of torch, as of MultiheadAttention
    if end.function in {"mean", "sum"} and not end.output.shape and last:
        pairs = [d for d in drawings if d.picture.kind == "broadcast"]
        if pairs and pairs[-1].output.numel == last[0].inputs[0].numel:
            return pairs[-1]._replace(picture=pairs[-1].picture._replace(kind="loss"))
    if last and last[0].picture.kind in VIEWS:
        chain = last[0]
        for before in reversed(drawings[:-1]):
            is_joined = before.output.tensor_id == chain.inputs[0].tensor_id
            if before.picture.kind not in VIEWS or not is_joined:
                break
            kinds = {before.picture.kind, chain.picture.kind}
            if "order" in kinds and len(kinds) > 1:
                break
            chain = Drawing(chain.picture, before.inputs, chain.output, chain.group)
        return chain
    found = [d for d in drawings if d.picture.kind in PRIORITY]
    best = min(found, key=lambda d: PRIORITY.index(d.picture.kind), default=None)
    if best is not None and best.picture.kind in {"reduction", "line"} and last:
        is_wide = len({t.shape for t in last[0].inputs if t.shape}) > 1
        if last[0].picture.kind == "broadcast" and is_wide:  # x - x.mean(1)
            return last[0]
    return best


LOSSES: Final = frozenset(
    {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"}
)
BY_FUNCTION: Final = {
    "matmul": ("matmul", 2),
    "rmatmul": ("matmul", 2),
    "linear": ("linear", 2),
    "scaled_dot_product_attention": ("scaled_dot_product_attention", 3),
}
"""The family of pictures of a function of several operators, and its operands."""

COPIES: Final = frozenset({"reshape", "flatten", "contiguous", "ravel"})
RECURRENT: Final = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def draw_group(group: Group) -> Drawing | None:
    """Return what a call of a function did, as one picture."""
    output, name = group.output, group.function
    if group.parts:
        return None
    if name in RECURRENT:
        return draw_recurrent(group)
    family, n_operands = BY_FUNCTION.get(name, ("", 0))
    terms = read_equation(group) if name == "einsum" else ""
    n_operands = n_operands or terms.count(",") + 1
    inputs = [*group.inputs]
    inputs += inputs[-1:] * (n_operands - len(inputs))  # as in x @ x
    shapes = [t.shape for t in inputs]
    call = PicturedCall(name, {}, shapes, output.shape)
    picture: Picture | None = None
    if family:
        picture = FAMILIES[family](call)
    elif terms:
        picture = read_terms(terms, call)
    elif name in LOSSES and len(shapes) > 1:
        inputs = inputs[:2]
        sizes = torch.broadcast_shapes(*shapes[:2])
        found = broadcast(PicturedCall(name, {}, shapes[:2], sizes))
        picture = found._replace(kind="loss") if found else None
        output = replace(output, shape=sizes, stride=(0,) * len(sizes))
    elif inputs and inputs[0].stride is not None:
        is_alias = output.storage_id == inputs[0].storage_id
        is_view = all(op.is_view or "_unsafe_view" in op.op for op in group.ops)
        if is_alias and is_view:
            picture, inputs = Picture("memory"), inputs[:1]
        elif name in COPIES:
            picture, inputs = Picture("order"), inputs[:1]
    if picture is not None:
        return Drawing(picture, inputs, output, group)
    return draw_operator(group)


def draw_operator(group: Group) -> Drawing | None:
    """Return the operator of a call that teaches most."""
    found: list[Drawing] = []
    for op in group.ops:
        picture = find_picture(op)
        if picture is not None and picture.kind in PRIORITY:
            found.append(Drawing(picture, op.inputs, op.outputs[0], group))
    return min(found, key=lambda d: PRIORITY.index(d.picture.kind), default=None)


def read_equation(group: Group) -> str:
    """Return the equation of an einsum, which only its code has; "" of others."""
    (first, *_) = getattr(group.node, "args", []) or [None]
    terms = "".join(str(getattr(first, "value", "")).split())
    return terms if "->" in terms and "." not in terms else ""


def draw_recurrent(group: Group) -> Drawing | None:
    """Return the picture of a recurrent layer, by its own inputs and outputs."""
    module = group.module
    if module is None or not module.outputs:
        return None
    given, made = module.inputs[0][1], module.outputs[0][1]
    if len(given.shape) != 3:  # noqa: PLR2004  a batch, steps of time, features
        return None
    time = find_time(group)
    reach: list[Any] = [0, 1, -1]
    reach[time] = ["upto", time]
    return Drawing(Picture("recurrent", [reach]), [given], made, group)


def find_time(group: Group) -> int:
    """Return the dimension of time: 1 if the layer took the batch first."""
    given = group.module.inputs[0][1].tensor_id if group.module else -1
    read = [op.op for op in group.ops if op.inputs and op.inputs[0].tensor_id == given]
    return int(read[:1] == ["aten.transpose.int"])


def ask_shape(line: Line, drawing: Drawing) -> Question | None:
    """Ask for the shape of what the line makes."""
    kind, shapes = drawing.picture.kind, [t.shape for t in drawing.inputs]
    if kind == "broadcast" and len({s for s in shapes if s}) < 2:  # noqa: PLR2004
        return None
    if kind == "reduction" and len(drawing.output.shape) == 0:
        return None
    if kind in {"copy", "memory"} and drawing.output.shape == shapes[0]:
        return None
    answer = line.groups[-1].output.shape
    if drawing.group.function in MASKED and kind == "broadcast":
        return ask_mask(line, drawing)
    right = describe_sizes(kind, drawing)
    if drawing.group.output.shape != answer:
        right += f" In the end {line.groups[-1].function} gives {format_shape(answer)}."
    whys = SHAPE_WHYS.get(kind, SHAPE_WHYS["broadcast"])
    whys = {**whys, **SHAPE_WHYS.get(drawing.group.function, {})}
    text = f"What is the shape of {line.title}?"
    return Question("shape", text, answer, whys, right=right)


MASKED: Final = frozenset({"masked_fill", "masked_fill_"})


def ask_mask(line: Line, drawing: Drawing) -> Question:
    """Ask for how many scores one element of a mask is used."""
    scores, mask = drawing.inputs[:2]
    name = line.names.get(mask.tensor_id, "the mask")
    n = prod(drawing.output.shape) // max(1, mask.numel)
    shapes = f"{format_shape(mask.shape)} is aligned with {format_shape(scores.shape)}"
    right = f"{shapes} from the right, and repeated {n} times."
    text = f"For how many elements of the result is one element of {name} used?"
    return Question("number", text, n, {"other": right}, right=right)


def describe_sizes(kind: str, drawing: Drawing) -> str:
    """Return the reason of a shape with the sizes of this call."""
    shapes, out = [t.shape for t in drawing.inputs], drawing.output.shape
    if kind == "product" and drawing.picture.terms:
        given, made = drawing.picture.terms.split("->")
        pairs = [*zip(given.split(","), shapes, strict=False)]
        both = [(term, shape) for term, shape in pairs if term != "*"]
        sizes = {c: n for one in both for c, n in zip(*one, strict=True)}
        summed = " and ".join(str(n) for c, n in sizes.items() if c not in made)
        joined = " and ".join(format_shape(shape) for _, shape in both)
        gives = "give" if len(both) > 1 else "gives"
        return f"{joined} {gives} {format_shape(out)}; summed: {summed or 'nothing'}."
    if kind == "window" and drawing.picture.terms:
        return f"The last dimension: {drawing.picture.terms}."
    joined = " and ".join(format_shape(shape) for shape in shapes[:3])
    return f"{joined} give{'' if len(shapes) > 1 else 's'} {format_shape(out)}."


def ask_view(line: Line, drawing: Drawing) -> Question | None:
    """Ask which number a view has at an index, or whether it is a view at all."""
    given, made = drawing.inputs[0], drawing.output
    name = line.names.get(given.tensor_id, "its input")
    target, function = line.title, drawing.group.function
    is_copy = given.storage_id != made.storage_id
    if function in COPIES and is_copy:
        why = (
            f"No strides read this shape from the memory of {name}: {function} copies."
        )
        return Question(
            "choice",
            f"Is {target} a view of {name}, or a copy?",
            "a copy",
            {"other": why},
            ("a view", "a copy"),
            why,
        )
    if given.numel < 2 or 0 in made.shape:  # noqa: PLR2004
        return ask_shape(line, drawing)
    index, number = choose_element(given, made)
    as_rows = to_number(index, made.shape)
    ones = [[n for n in t.shape if n > 1] for t in (given, made)]
    if number == as_rows and ones[0] == ones[1]:
        return ask_shape(line, drawing)
    crossed = to_number(index[::-1], made.shape[::-1])
    at = ", ".join(map(str, index))
    right = f"{target}[{at}] is {describe_index(name, given, number)}."
    if not is_copy and to_address(index, made) - (given.storage_offset or 0) == number:
        right = f"{describe_address(index, made)} in memory: {right}"
    whys = {"other": right}
    if number != as_rows:
        whys[str(as_rows)] = (
            f"That counts {target} row by row; its strides give another order."
        )
    elif crossed != number:
        whys[str(crossed)] = (
            "That counts column by column; the elements stand row by row here."
        )
    text = f"Number the elements of {name} 0, 1, 2, … row by row."
    text = f"{text} Which number stands at {target}[{at}]?"
    return Question("number", text, number, whys, right=right, at=index)


def ask_line(line: Line, drawing: Drawing) -> Question | None:
    """Ask along which dimension a softmax adds up to one."""
    reach = drawing.picture.reaches[0]
    if "softmax" not in drawing.group.function.lower() or -1 not in reach:
        return None
    dim, target = reach.index(-1), line.title
    size = drawing.output.shape[dim]
    right = f"Dimension {dim}, of size {size}: each line along it adds up to 1."
    return Question(
        "number",
        f"Along which dimension of {target} do the elements add up to 1? Count from 0.",
        dim,
        {"other": right},
        right=right,
    )


def ask_time(line: Line, drawing: Drawing) -> Question | None:
    """Ask which dimension of a recurrent layer's input is time."""
    time = find_time(drawing.group)
    name = line.names.get(drawing.inputs[0].tensor_id, "its input")
    order = "(batch, time, features)" if time else "(time, batch, features)"
    why = f"batch_first is {bool(time)} here: the input is {order}."
    text = f"Which dimension of {name} is time? Count from 0."
    return Question("number", text, time, {"other": why}, right=why)


def ask_terms(line: Line, drawing: Drawing) -> Question | None:
    """Ask how many terms a loss has; a broadcast makes more than there are targets."""
    n = prod(drawing.output.shape)
    shapes = " and ".join(format_shape(t.shape) for t in drawing.inputs)
    wide = format_shape(drawing.output.shape)
    right = f"{shapes} are broadcast to {wide}: {n} terms."
    if len({t.shape for t in drawing.inputs}) == 1:
        right = f"Both have the shape {wide}: {n} terms."
    targets = {str(t.numel): f"So many were meant. {right}" for t in drawing.inputs}
    targets.pop(str(n), None)
    text = f"How many terms does {line.target or 'this loss'} add up or average?"
    return Question("number", text, n, {"other": right} | targets, right=right)


def ask_scores(_: Line, drawing: Drawing) -> Question | None:
    """Ask how many scores a query has."""
    key = drawing.inputs[1]
    n = key.shape[-2]
    right = f"One for each key: the key's dimension -2 is {n}."
    text = "How many scores does the softmax of one query have?"
    return Question("number", text, n, {"other": right}, right=right)


Ask: TypeAlias = Callable[[Line, Drawing], Question | None]
QUESTIONS: Final[Mapping[str, Ask]] = {
    "memory": ask_view,
    "order": ask_view,
    "line": ask_line,
    "recurrent": ask_time,
    "loss": ask_terms,
    "attention": ask_scores,
}
"""The question of each kind of picture; all others ask for the shape."""


def write_lesson(lesson: Lesson) -> dict[str, Any]:
    """Return a lesson as JSON, which ``static/lesson.js`` reads."""

    def write_tensor(drawn: Drawn) -> dict[str, Any]:
        name, t = drawn
        offset = t.storage_offset or 0
        geometry = {"shape": t.shape, "stride": t.stride, "offset": offset}
        return {"name": name, "geometry": geometry}

    def write_call(
        picture: Picture,
        inputs: Sequence[Drawn],
        output: Drawn,
        layers: Sequence[Layer],
    ) -> dict[str, Any]:
        before = None
        if layers:
            (earlier, given, made), *rest = layers
            before = write_call(earlier, [given], made, rest)
        return {
            "picture": picture._asdict(),
            "inputs": [*map(write_tensor, inputs)],
            "outputs": [write_tensor(output)],
            "before": before,
        }

    return {
        "failure": lesson.failure,
        "steps": [
            {
                "line": step.line,
                "code": step.code,
                "given": step.given,
                "question": step.question._asdict(),
                "call": step.picture
                and write_call(step.picture, step.inputs, step.output, step.layers),
            }
            for step in lesson.steps
        ],
    }
