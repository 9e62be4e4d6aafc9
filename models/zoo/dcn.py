"""DCN-v2 (Wang et al., 2021): products of features of bounded degree by a cross network, beside an MLP or below it."""

from __future__ import annotations

from typing import Annotated, Literal

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.layers import LayerFactory, Tensor, side_by_side
from freshet_serving.models.zoo.option_types import ClosedInterval, Dropout, Hidden


def build(
    layout: DenseInput,
    hidden: Hidden = (256, 128, 64),
    cross_layers: Annotated[int, ClosedInterval(1, 16)] = 3,
    low_rank: Annotated[int, ClosedInterval(0, 65_536)] = 0,
    structure: Literal["parallel", "stacked"] = "parallel",
    dropout: Dropout = 0.0,
    seed: int = 0,
) -> Arch:
    """Build the network over x [n, layout.width].

    x_0 = x; x_(i+1) = x_0 * (W_i x_i + b_i) + x_i

    parallel: logit = w (x_last, MLP(x)); stacked: logit = w MLP(x_last)

    Weights: cross_<i>, or cross_<i>_down and cross_<i>_up; mlp_<i>, out.

    Args:
        low_rank: W_i is U_i V_i with this rank, which is cheaper below half the width; the paper finds a quarter of the
            width as good as 0, the full matrix.
    """
    from freshet_serving.compiler.frameworks import keras

    layer_factory = LayerFactory(seed, dropout)
    x = keras.Input((layout.width,), name="x")
    crossed = x
    for i in range(cross_layers):
        crossed = x * _linear(layer_factory, crossed, layout.width, low_rank, f"cross_{i}") + crossed
    if structure == "stacked":
        top = layer_factory.tower(crossed, hidden, "mlp")
    else:
        top = side_by_side([crossed, layer_factory.tower(x, hidden, "mlp")] if hidden else [crossed])
    return Arch.of(keras.Model(x, layer_factory.dense(top, 1, "out"), name="dcn"))


def _linear(layer_factory: LayerFactory, x: Tensor, width: int, rank: int, name: str) -> Tensor:
    """Return W x + b [n, width]; with a rank other than 0, W is a product of two thin matrices."""
    if not rank:
        return layer_factory.dense(x, width, name)
    return layer_factory.dense(layer_factory.dense(x, rank, f"{name}_down", bias=False), width, f"{name}_up")
