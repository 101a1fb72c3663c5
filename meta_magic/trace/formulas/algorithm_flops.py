"""Linear algebra, Fourier transforms, distances: leading terms of usual algorithms.

For dense real matrices; a batch counts for each of its matrices. How often eigenvalues
and singular values are iterated depends on the data: the counts are the customary ones.

Source:
    Golub and Van Loan, Matrix Computations, 4th edition, chapters 3 to 8; LAPACK
    Working Note 41, appendix C.
    A complex Fourier transform of n points: 5 n log₂ n real operations (Cooley and
    Tukey, radix 2), half of that for real data, as benchmarks of FFTs count.
    Distances: ``aten/src/ATen/native/Distance.cpp``.
"""

from collections.abc import Callable, Mapping
from math import log2, prod
from typing import Final, NamedTuple

from meta_magic.trace.signature import Formula, Operands, of_all


class Matrices(NamedTuple):
    """A batch of ``n`` matrices, with the larger and the smaller of their two sizes."""

    n: int
    long: int
    short: int


def read_matrices(call: Operands) -> Matrices:
    """Return the matrices that are factorized."""
    *batch, rows, columns = call.shape("A", "self", "input", "LU", "LD")
    return Matrices(prod(batch), max(rows, columns), min(rows, columns))


def of_matrix(leading: Callable[[int, int], float]) -> Formula:
    """Return a formula from the leading terms in the two sizes of a matrix."""

    def count(call: Operands) -> int:
        n, long, short = read_matrices(call)
        return n * round(leading(long, short))

    return count


def of_sides(each: int, factor: float = 0.0) -> Formula:
    """Return the formula of a linear system with a matrix of n rows.

    ``factor`` n³ to factorize the matrix, and ``each`` n² for each right side.
    """

    def count(call: Operands) -> int:
        *batch, n, _ = call.shape("LU", "LD", "A", "input2", "self")
        return each * n * prod(call.made) + prod(batch) * round(factor * n**3)

    return count


def count_triangular(call: Operands) -> int:
    """Count substitution: n / 2 multiply-adds for each element of the right side."""
    return call.shape("A", "self")[-1] * prod(call.made)


def count_least_squares(call: Operands) -> int:
    """Count a QR factorization, its use on each right side, and substitution."""
    n, long, short = read_matrices(call)
    n_sides = prod(call.shape("b")) // max(n * call.shape("self")[-2], 1)
    each = 4 * long * short - 2 * short**2 + short**2
    return n * (round(reduce_columns(long, short)) + n_sides * each)


def reduce_columns(long: int, short: int) -> float:
    """Return the FLOPs of a factorization by Householder reflections."""
    return 2 * short**2 * (long - short / 3)


def count_qr(call: Operands) -> int:
    """Count the reflections, and to form Q from them unless ``mode`` is "r"."""
    n, long, short = read_matrices(call)
    rows, mode = call.shape("A")[-2], call.value("mode", "reduced")
    made = 0.0 if mode == "r" else form_q(rows, call.made[-1], short)
    return n * round(reduce_columns(long, short) + made)


def count_formed(call: Operands) -> int:
    """Count to form Q from its reflections."""
    *batch, rows, columns = call.made
    return prod(batch) * round(form_q(rows, columns, call.shape("tau")[-1]))


def form_q(rows: int, columns: int, n: int) -> float:
    """Return the FLOPs to form columns of a Q of n reflections."""
    return 4 * rows * columns * n - 2 * (rows + columns) * n**2 + 4 / 3 * n**3


def count_reflections(call: Operands) -> int:
    """Count the product with a Q that is given by its reflections."""
    *_, rows, columns = call.shape("input3")
    *batch, _, n_reflections = call.shape("self")
    n_own = rows if call.value("left", default=True) else columns
    each = 4 * rows * columns - 2 * (rows * columns // max(n_own, 1)) * n_reflections
    return prod(batch) * n_reflections * each


def count_singular(call: Operands) -> int:
    """Count singular values alone, with the short vectors, or with all of them."""
    n, long, short = read_matrices(call)
    if not call.value("compute_uv", default=True):
        return n * (2 * long * short**2 + 2 * short**3)
    if call.value("full_matrices"):
        return n * (4 * long**2 * short + 22 * short**3)
    return n * (6 * long * short**2 + 20 * short**3)


def count_symmetric(call: Operands) -> int:
    """Count the eigenvalues of a symmetric matrix, and its vectors if computed."""
    n, size, _ = read_matrices(call)
    with_vectors = call.value("compute_v", default=True)
    return n * (9 * size**3 if with_vectors else round(4 / 3 * size**3))


def factor_rows(long: int, short: int) -> float:
    """Return the FLOPs of an LU factorization."""
    return short**2 * (long - short / 3)


FACTORIZATION_FLOPS: Final[Mapping[str, Formula]] = (
    of_all(
        "linalg_lu_factor_ex linalg_lu _linalg_det _linalg_slogdet",
        of_matrix(factor_rows),
    )
    | of_all(
        "linalg_cholesky_ex cholesky linalg_ldl_factor_ex",
        of_matrix(lambda n, _: n**3 / 3),
    )
    | of_all("linalg_inv_ex", of_matrix(lambda n, _: 2 * n**3))
    | of_all("cholesky_inverse", of_matrix(lambda n, _: 2 / 3 * n**3))
    | {"aten._linalg_solve_ex": of_sides(2, 2 / 3)}
    | of_all("linalg_lu_solve linalg_ldl_solve cholesky_solve", of_sides(2))
    | of_all("linalg_solve_triangular triangular_solve", count_triangular)
    | of_all("geqrf", of_matrix(reduce_columns))
    | of_all("linalg_householder_product", count_formed)
    | of_all("linalg_qr", count_qr)
    | of_all("ormqr", count_reflections)
    | of_all("linalg_lstsq", count_least_squares)
    | {"aten._linalg_svd": count_singular, "aten._linalg_eigh": count_symmetric}
    | of_all("linalg_eig", of_matrix(lambda n, _: 25 * n**3))
    | of_all("linalg_eigvals _linalg_eigvals", of_matrix(lambda n, _: 10 * n**3))
)

MANY: Final = 25
"""Rows above which distances are computed by a product of matrices."""


def count_fourier(call: Operands, each: float) -> int:
    """Count transforms along some dimensions, by the size of the real side."""
    shape = call.shape("self") if "last_dim_size" not in call else call.made
    dims = call.value("dim")
    n_points = prod(shape[d] for d in dims)
    return round(each * prod(shape) * log2(max(n_points, 1)))


def count_distances(call: Operands) -> int:
    """Count subtraction, power and sum for each pair of rows and coordinate.

    Euclidean distances of many rows are a product of matrices with two more columns.
    """
    first, second = call.shape("x1"), call.shape("x2")
    n_pairs, width = prod(call.made), first[-1]
    by_product = call.value("compute_mode")
    has_many = max(first[-2], second[-2]) > MANY
    is_product = by_product == 1 or (not by_product and has_many)
    if call.value("p", 2.0) == 2.0 and is_product:  # noqa: PLR2004  Euclid's
        return 2 * n_pairs * (width + 2)
    return 3 * n_pairs * width


def count_distances_backward(call: Operands) -> int:
    """Count subtraction, quotient, product and sum for each pair and coordinate."""
    return 4 * prod(call.shape("cdist")) * call.shape("x1")[-1]


TRANSFORM_FLOPS: Final[Mapping[str, Formula]] = {
    "aten._fft_c2c": lambda call: count_fourier(call, 5.0),
    "aten._fft_r2c": lambda call: count_fourier(call, 2.5),
    "aten._fft_c2r": lambda call: count_fourier(call, 2.5),
    "aten._cdist_forward": count_distances,
    "aten._cdist_backward": count_distances_backward,
    "aten._euclidean_dist": count_distances,
    "aten._pdist_forward": lambda call: 3 * prod(call.made) * call.shape("self")[-1],
}
