"""The plugin as pytest runs it, in a process of its own."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

MODEL = """
    import pytest, torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

        def forward(self, x):
            return x + self.down(self.up(x).relu())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Block(64) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
"""


@pytest.fixture
def run(pytester):
    """Run tests with the plugin, and return what pytest made of them."""

    def run_tests(tests):
        path = pytester.makepyfile(MODEL + tests)
        arguments = "-p", "meta_magic.pytest_plugin", "-p", "no:cacheprovider"
        return pytester.runpytest_subprocess(*arguments, "-rA", path, timeout=120)

    return run_tests


PASSING = """
    def test_what_a_model_returns(meta_trace):
        model = Model()
        model(torch.zeros(4, 8, 64))
        meta_trace.assert_shapes(model, {"layers.*": (None, 8, 64), "": (4, ..., 64)})
        meta_trace.assert_shapes(model.layers[1], {"up": (4, 8, 128)})
        # Three blocks of 64 * 128 and 128 * 64 weights, and 128 + 64 biases.
        meta_trace.assert_max(params=3 * (2 * 64 * 128 + 192), flops=1e9)
        meta_trace.assert_fits("a100-80gb")
        assert meta_trace.trace.modules[0].name == "model"

    def test_what_takes_no_memory(meta_trace):
        assert nn.Linear(10**6, 10**6).weight.is_meta

    @pytest.mark.meta(as_device="cuda")
    def test_kernels_of_a_device(meta_trace):
        q = torch.zeros(1, 8, 128, 64, dtype=torch.bfloat16)
        nn.functional.scaled_dot_product_attention(q, q, q)
        assert "flash" in meta_trace.trace.ops[-1].op

    @pytest.mark.meta
    class TestMarked:
        @pytest.mark.parametrize("size", [1, 2])
        def test_each_method(self, size):
            assert torch.ones(size).is_meta

    def test_others_are_real():
        assert not torch.ones(2).is_meta

    def test_what_is_initialized(meta_trace):
        model = nn.Sequential(Model(), nn.LayerNorm(4).to_empty(device="cpu"))
        model[1].reset_parameters()
        meta_trace.assert_initialized(model)

    def test_what_is_not(meta_trace):
        model = nn.Sequential(Model(), nn.LayerNorm(4).to_empty(device="cpu"))
        meta_trace.assert_initialized(model[0])
        with pytest.raises(AssertionError, match="model.1.weight is uninitialized"):
            meta_trace.assert_initialized(model)

    def test_of_a_large_model(meta_trace):
        nn.Linear(100_000, 100_000)
        with pytest.raises(AssertionError, match="at the peak: parameter 37"):
            meta_trace.assert_fits("t4")

    def test_of_a_value_goes_on_from_no_draw_of_another(meta_trace):
        assert nn.Linear(4, 2)(torch.randn(3, 4)).sum().item() != 0
"""


def test_tests_that_hold_pass_on_meta_and_others_are_left_alone(run):
    run(PASSING).assert_outcomes(passed=10)


FAILING = """
    def test_shapes(meta_trace):
        model = Model()
        model(torch.zeros(4, 8, 64))
        meta_trace.assert_shapes(model, {"layers.*.up": (None, 8, 64), "lairs": (1,)})

    def test_maximum(meta_trace):
        model = Model()
        meta_trace.assert_max(params=1000, peak_nbytes=10**9)

    def test_memory(meta_trace):
        model = nn.Linear(10**5, 10**6)
        meta_trace.assert_fits("h100-sxm")

    def test_quantity(meta_trace):
        meta_trace.assert_max(parameters=1)

    def test_strange_model(meta_trace):
        meta_trace.assert_shapes(nn.Linear(1, 1), {})
        meta_trace.assert_shapes(nn.Linear(2, 2), {})

    @pytest.mark.meta(as_devise="cuda")
    def test_option():
        pass

    @pytest.fixture
    def early(meta_trace):
        return meta_trace.trace

    def test_early(early):
        pass

    @pytest.mark.meta
    def test_wrong_size():
        model = Model()
        model(torch.zeros(4, 8, 60))

    def test_mistake(meta_trace):
        torch.ones(5, 1) - torch.ones(5)
        meta_trace.assert_right()

    @pytest.mark.meta
    def test_plain_failure():
        assert torch.ones(3).sum() == 4
"""


def test_what_fails_says_what_was_found_and_where(run):
    failing = run(FAILING)
    failing.assert_outcomes(failed=9, errors=1)
    failing.stdout.fnmatch_lines_random(
        [
            "E *layers.0.up (Linear) returned (4, 8, 128) in line *, not (any, 8, 64)",
            "E *no module that was called is named 'lairs'; called were *'layers.0'*",
            "E       AssertionError: params is 49.7 K (49,728), and the budget is *",
            "E       AssertionError: 372.5 GiB at the peak does not fit h100-sxm *",
            "E *note: line *: sub broadcast (5, 1) with (5,) to (5, 5): *",
            "*'parameters' is no quantity of a budget; these are: params,*",
            "*the test neither built nor called this Linear",
            "@pytest.mark.meta: meta_magic.record() got an unexpected *'as_devise'",
            "*meta_trace records the test's function, not fixtures",
        ]
    )
    # What torch refuses is explained in the report of its test, and nothing else is.
    failing.stdout.fnmatch_lines(
        [
            "E *RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x60 *",
            "*- meta_magic -*",
            "*self.up(x)*in Linear `model.layers.0.up`",
            "*x *(4, 8, 60) float32",
            "*dimension 2 of x (60) must equal dimension 1 of self.up.weight (64)",
        ]
    )
    text = failing.stdout.str()
    assert text.count("- meta_magic -") == 1
    assert "function_mode.py" not in text
    assert "pytest_plugin.py" not in text.split("test_early")[0]


def test_a_run_that_asks_for_nothing_does_not_import_torch(pytester):
    path = pytester.makepyfile("def test_nothing(): pass")
    code = (
        "import sys, pytest\n"
        f"code = pytest.main(['-q', '-p', 'meta_magic.pytest_plugin', {str(path)!r}])\n"
        "assert 'meta_magic.pytest_plugin' in sys.modules\n"
        "assert not {'torch', 'pandas', 'IPython', 'numpy'} & sys.modules.keys()\n"
        "sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False)
    assert result.returncode == 0


BROKEN = """
    @pytest.fixture
    def images():
        return torch.randn(2, 60)

    WIDTH = 64

    class TestModel:
        @pytest.mark.parametrize("n", [61])
        def test_a_width(self, meta_trace, images, n):
            first = nn.Linear(n - 1, WIDTH)
            model = nn.Sequential(first, nn.Linear(32, 10))
            model(images)
            meta_trace.assert_shapes(model, {"": (2, 11)})
            return None
"""


def test_an_error_in_a_test_is_traced_and_repaired(run):
    line = (MODEL + BROKEN).count("\n") - 5
    run(BROKEN).stdout.fnmatch_lines(
        [
            f"line {line + 2}: model(images) *",
            f"*why 64 = WIDTH, written (line {line - 5})",
            f"*why 32 = model[[]1[]].in_features, written (line {line + 1})",
            "*used as it is, not made again: images, n",
            "repairs that ran",
            f"*line {line + 1}  model = nn.Sequential(first, nn.Linear(32, 10))",
            "*->*model = nn.Sequential(first, nn.Linear(64, 10))",
        ]
    )
