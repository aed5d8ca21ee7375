"""An initialization in which what layers add to the stream starts small.

From a standard initialization each layer adds about as much variance to the
stream as the embedding brought: the projections that write, w_o and w_out, keep
the variance of what they read, and a squared ReLU raises it. So in layer n a
token's own embedding, and what a single head has copied, is 1/(1 + c·n) of the
variance, c about 1.8, and keys that are made late see little of it. GPT-2
(Radford et al. 2019) divides what is written by the root of the number of
writers, 2 per layer:

    w_o, w_out  ←  w_o, w_out / √(2 · layers)

Then all layers together add as much as the embedding. The sources say nothing
about initialization.
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
