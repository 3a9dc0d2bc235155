import pytest

from training.speed.flops import step_flops

SIZES = {"hidden_dim": 6, "intermediate_dim": 10, "num_layers": 3, "num_heads": 2}


def product(rows, inner, columns):
    return 2 * rows * inner * columns


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (4, 7)])
def test_every_product_of_a_block_is_counted(rows, length):
    heads, dim, inner = 2, 6, 10
    tokens, size = rows * length, dim // heads
    block = (
        product(tokens, dim, 3 * dim)
        + rows * heads * (product(length, size, length) + product(length, length, size))
        + product(tokens, dim, dim)
        + product(tokens, dim, inner)
        + product(tokens, inner, dim)
    )
    # Backward, each product becomes two.
    assert step_flops(SIZES, [(rows, length)]) == 3 * 3 * block


def test_batches_add_up():
    assert step_flops(SIZES, [(2, 3), (4, 5)]) == step_flops(SIZES, [(2, 3)]) + step_flops(SIZES, [(4, 5)])
