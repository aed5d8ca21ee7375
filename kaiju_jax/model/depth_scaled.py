"""An initialization in which each layer's output starts small.

With a standard initialization each layer adds about as much variance to the
residual stream as the embedding did. The two projections that write to the
stream, w_o and w_out, keep the variance of their inputs, and a squared ReLU
raises it. So in layer n a token's own embedding makes up 1/(1 + c·n) of the
stream's variance, c about 1.8, as does a value that one head has copied. Keys
of late layers then carry little of either. GPT-2 (Radford et al. 2019) divides
the writing projections by the root of their number, 2 per layer:

    w_o, w_out  ←  w_o, w_out / √(2 · layers)

Then all layers together add as much variance as the embedding. The sources say
nothing about initialization.
"""

from typing import Any

import jax

from kaiju_jax.model import config as model_config

_WRITERS = 'w_o_DHK', 'w_out_DF'


def scale(params: Any, config: model_config.ModelConfig) -> Any:
  """Returns standard parameters with smaller writing projections.

  Args:
    params: float32 parameters of a `Transformer` of this config.
    config: that model's config.
  """
  factor = (2 * len(config.layers())) ** -0.5

  def of(path, parameter):
    return parameter * factor if path[-1].key in _WRITERS else parameter

  return jax.tree_util.tree_map_with_path(of, params)
