"""A pytest plugin: ``def test(meta_trace)`` runs and is recorded on the meta device.

The recording starts with the call of the test's function. The first question to it ends
it, while the models still have their variables' names. The plugin does not import torch
before a test needs it. Read :class:`MetaTrace` first.
"""

import inspect
import sys
from collections.abc import Generator, Mapping
from dataclasses import replace
from itertools import chain
from traceback import walk_stack, walk_tb
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    import torch
    from torch import nn

    from meta_magic.session.recording import Recording
    from meta_magic.trace.calls import ModuleCall
    from meta_magic.trace.expectations import Expected
    from meta_magic.trace.options import Rerun
    from meta_magic.trace.trace import Trace


MARKER: Final = (
    "meta(as_device=None, limits=..., assume=(), named='plan', check_values=False, "
    "check=False): run the test's function on torch's meta device and record it, as "
    "the fixture meta_trace does; the arguments are those of meta_magic.record()"
)


class MetaTrace:
    """The recording of a test's function, and its assertions.

    The first question ends the recording: later code of the test is not recorded, and
    recorded tensors stay on meta.
    """

    def __init__(self, function: Any, chosen: Mapping[str, Any]) -> None:
        self._owner = getattr(function, "__self__", None)
        plain = inspect.unwrap(getattr(function, "__func__", function))
        self._code: CodeType = plain.__code__
        self._globals: dict[str, object] = plain.__globals__
        self._chosen = chosen
        self._recording: Recording | None = None
        self._trace: Trace | None = None
        self._rerun: Rerun | None = None
        self._drawn: torch.Tensor | None = None

    @property
    def trace(self) -> "Trace":
        """The trace of the test's calls before it asked for the trace.

        Raises:
            RuntimeError: The test's function does not run yet.
        """
        self.end()
        if self._trace is None:
            raise RuntimeError("meta_trace records the test's function, not fixtures")
        return self._trace

    def begin(self, arguments: Mapping[str, object]) -> None:
        """Start to record a call of the function with some arguments."""
        import torch  # noqa: PLC0415  takes seconds, and most tests need none

        from meta_magic.session.record import record  # noqa: PLC0415  as well
        from meta_magic.session.recording import Recording  # noqa: PLC0415  as well

        try:
            options = record(**self._chosen).options
        except (TypeError, ValueError) as error:
            wrong = str(error).replace("record.__init__", "meta_magic.record")
            pytest.fail(f"@pytest.mark.meta: {wrong}", pytrace=False)
        from meta_magic.trace.options import make_call_rerun  # noqa: PLC0415  as well

        owner = {} if self._owner is None else {"self": self._owner}
        self._rerun = make_call_rerun(
            self._code, self._globals, {**owner, **arguments}, options, FIXTURE
        )
        self._recording = Recording(
            self._code.co_filename,
            self._code,
            options,
            entry_points=(MetaTrace.begin, MetaTrace.end),
            namespace=self._globals,
        )
        self._drawn = torch.get_rng_state()
        self._recording.guard.enter()

    def end(self, error: BaseException | None = None) -> None:
        """Stop to record; ``error`` is what ended the test's function."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        from meta_magic.session.raised_calls import hide_others  # noqa: PLC0415  as above

        try:
            recording.guard.leave()
        finally:
            if error is not None:
                hide_others(error)
            frame = self._find_frame(error)
            namespace = {**self._globals, **({} if frame is None else frame.f_locals)}
            trace = recording.finish(error, namespace)
            self._trace = replace(trace, rerun=self._rerun)

    def close(self) -> None:
        """Restore torch's generator, so that no test depends on another's draws."""
        if self._drawn is not None:
            import torch  # noqa: PLC0415  imported already

            torch.set_rng_state(self._drawn)

    def assert_shapes(
        self, model: "nn.Module", expected: "Mapping[str, Expected]"
    ) -> None:
        """Fail unless each call of some modules returned tensors of these shapes.

        Args:
            model: A module that the test called.
            expected: The shape of the first returned tensor by the name of a submodule.
                In a name ``*`` matches one part and ``**`` any number; ``""`` is the
                model itself. In a shape None matches any size, ``...`` any number of
                dimensions.
        """
        __tracebackhide__ = True
        from meta_magic.trace.expectations import find_misshapen  # noqa: PLC0415  as above

        found = [*find_misshapen(list_calls(self.trace, model), expected)]
        if found:
            raise AssertionError("\n".join(found))

    def assert_max(self, **limits: float) -> None:
        """Fail if a quantity of the test is over its limit.

        Args:
            limits: The maximum by the name of a quantity: ``params``, ``flops``,
                ``peak_nbytes`` or another of ``meta-magic check --budget``.

        Raises:
            BudgetError: There is no such quantity; the error lists all.
        """
        __tracebackhide__ = True
        from meta_magic.trace.expectations import find_overruns, make_limit  # noqa: PLC0415  as above

        chosen = [make_limit(name, most) for name, most in limits.items()]
        found = find_overruns(self.trace, chosen)
        if found:
            raise AssertionError("\n".join(map(str, found)))

    def assert_right(self) -> None:
        """Fail if the test runs something that is wrong, as ``Trace.wrong`` says."""
        __tracebackhide__ = True
        from meta_magic.trace.summary import format_note  # noqa: PLC0415  as above

        found = self.trace.wrong
        if found:
            lines = (f"{format_note(note)}\n  why: {note.why}" for note in found)
            raise AssertionError("\n".join(lines))

    def assert_fits(self, device: str) -> None:
        """Fail if the test's peak of memory does not fit a device.

        Args:
            device: Its name, such as ``h100-sxm`` or ``a100-80gb``. If the test names
                an accelerator, only its tensors count; else all tensors count.

        Raises:
            UnknownDeviceError: There is no such device; the error lists all.
        """
        __tracebackhide__ = True
        fit = self.trace.fit(device)
        if not fit.fits:
            from meta_magic.trace.units import format_bytes  # noqa: PLC0415  as above

            sums = self.trace.memory.peak.by_category.items()
            parts = (f"{name} {format_bytes(nbytes)}" for name, nbytes in sums)
            raise AssertionError(f"{fit}\nat the peak: {', '.join(parts)}")

    def assert_initialized(self, model: "nn.Module") -> None:
        """Fail if a parameter or buffer of a model is memory that nothing wrote.

        ``to_empty()`` leaves such memory, and ``reset_parameters()`` fills only what
        its author thought of. A buffer that its constructor leaves empty may stay so.

        Args:
            model: A module that the test built or called.
        """
        __tracebackhide__ = True
        number, prefix = find_in_roots(self.trace, model)
        start = ".".join(filter(None, (self.trace.modules[number].name, prefix)))
        found = [
            one
            for one in self.trace.contents
            if one.is_empty and one.root == number and is_within(one.name, start)
        ]
        if found:
            raise AssertionError("\n".join(map(str, found)))

    def explain(self) -> str:
        """Return why a call of torch ended the test; "" if none did."""
        explanation = None if self._trace is None else self._trace.explanation
        return "" if explanation is None or explanation.is_silent else explanation.text

    def _find_frame(self, error: BaseException | None) -> FrameType | None:
        """Return the frame of the test's function, if it still exists."""
        raised = walk_tb(None if error is None else error.__traceback__)
        frames = chain(raised, walk_stack(sys._getframe()))
        return next((f for f, _ in frames if f.f_code is self._code), None)


def find_in_roots(trace: "Trace", model: "nn.Module") -> tuple[int, str]:
    """Return the index of a model's root in ``trace.modules``, and its name within."""
    __tracebackhide__ = True
    for number, reference in enumerate(trace.roots):
        root = None if reference is None else reference()
        names = {} if root is None else {id(m): n for n, m in root.named_modules()}
        if id(model) in names:
            return number, names[id(model)]
    raise AssertionError(
        f"the test neither built nor called this {type(model).__name__}"
    )


def is_within(name: str, start: str) -> bool:
    """Whether a dotted name is that of a module, or of a part of it."""
    return not start or f"{name}.".startswith(f"{start}.")


def list_calls(trace: "Trace", model: "nn.Module") -> "dict[str, list[ModuleCall]]":
    """Return the calls of a model and its submodules, by their names in it."""
    __tracebackhide__ = True
    number, prefix = find_in_roots(trace, model)
    calls: dict[str, list[ModuleCall]] = {}
    for call in trace.module_calls:
        name = call.module
        if call.root == number and name is not None and is_within(name, prefix):
            own = name[len(prefix) :].removeprefix(".")
            calls.setdefault(own, []).append(call)
    return calls


FIXTURE: Final = "meta_trace"
KEY: Final = pytest.StashKey[MetaTrace]()


@pytest.fixture
def meta_trace(request: pytest.FixtureRequest) -> MetaTrace:
    """The recording of the test's function, which runs on torch's meta device.

    Its ``assert_shapes``, ``assert_max``, ``assert_fits`` and ``assert_initialized``
    fail the test; ``trace``
    is the :class:`meta_magic.Trace` of the test's calls before it asked.
    """
    return find_recording(request.node)


def find_recording(item: Any) -> MetaTrace:
    """Return the recording of a test; a new one at the first call."""
    found: MetaTrace | None = item.stash.get(KEY, None)
    if found is None:
        marker = item.get_closest_marker("meta")
        found = MetaTrace(item.obj, {} if marker is None else marker.kwargs)
        item.stash[KEY] = found
    return found


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Record the function of a test that has the fixture or the marker."""
    is_marked = pyfuncitem.get_closest_marker("meta") is not None
    if KEY not in pyfuncitem.stash and not is_marked:
        return (yield)
    recording = find_recording(pyfuncitem)
    recording.begin(pyfuncitem.funcargs)
    try:
        returned = yield
    except BaseException as error:
        recording.end(error)
        raise
    else:
        recording.end()
    finally:
        recording.close()
    return returned


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the explanation to the report of a test that a call of torch ended."""
    report = yield
    if KEY in item.stash and report.when == "call" and report.failed:
        explanation = item.stash[KEY].explain()
        if explanation:
            report.sections.append(("meta_magic", explanation))
    if report.when == "teardown" and KEY in item.stash:
        del item.stash[KEY]
    return report
