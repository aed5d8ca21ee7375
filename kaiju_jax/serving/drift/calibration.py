"""Limits of keys and values: reads, proposes and checkpoints them.

A limit is the value that gets code 127 in one channel. Within an engine limits
never change, because stored codes would mean other values: new limits are
another model, with another root of the prefix tree. So what this proposes is a
candidate that has to pass the quantization gate, and then a server or a replica
of its own. The checkpoint before it is the way back.

    proposed = limit × (the level that BEYOND of |code| exceed) / 127

A channel of which more than twice BEYOND is at the rail gets GROWTH times its
limit, because codes do not say how far beyond it values were; between the two a
limit stays. The bounds are our guess.
"""

from typing import Any

import numpy as np

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.serving.drift import histograms

# The share of a channel's values that may lie beyond its limit.
BEYOND = 1e-3
# By how much a proposal widens a channel that is cut too often, and by how much
# it narrows one at most.
GROWTH, SHRINK = 1.25, 0.8
# The fewest values of a channel that say something about its limit.
LEAST = 20 / BEYOND
_NAMES = 'k_limit_K', 'v_limit_K'


def propose(limits: np.ndarray, counts: histograms.Counts) -> np.ndarray:
  """Returns the limits that the codes of a time call for.

  Args:
    limits: float [layers, 2, K], with which the codes were made.
    counts: of the codes; a channel with fewer than LEAST stays as it is.
  """
  total = counts.codes.sum(-1)
  # beyond[..., n]: the share of |code| > n.
  beyond = 1 - np.cumsum(counts.codes, -1) / np.maximum(total, 1)[..., None]
  # A value of code n is up to n + .5 of 127 parts.
  level = (beyond > BEYOND).sum(-1) + 0.5
  factor = np.clip(level / histograms.RAIL, SHRINK, 1.0)
  at_rail = counts.codes[..., histograms.RAIL] / np.maximum(total, 1)
  factor = np.where(at_rail > 2 * BEYOND, GROWTH, factor)
  return (limits * np.where(total >= LEAST, factor, 1.0)).astype(np.float32)


def read_limits(params: Any, config: model_config.ModelConfig) -> np.ndarray:
  """Returns a model's limits, float32 [layers, 2, K], by owner of a cache.

  Args:
    params: masters or deployed, stacked over the repeats of a block; or a
      decoder's.

  Raises:
    ValueError: it has a scale per token, which cannot drift.
  """
  check(config)
  blocks = params['blocks']
  found = []
  for owner in layers_lib.owners(config.layers()):
    repeat, place = divmod(owner, len(blocks))
    attention = blocks[f'layer_{place}']['attention']
    # A decoder's parameters have a layer each, and no repeats.
    both = (np.asarray(attention[name]) for name in _NAMES)
    found.append([x.reshape(-1, x.shape[-1])[repeat] for x in both])
  return np.array(found, np.float32)


def write_limits(
  params: Any, config: model_config.ModelConfig, limits: np.ndarray
) -> Any:
  """Returns parameters with other limits; arguments as `read_limits`'s.

  Raises:
    ValueError: it has a scale per token.
  """
  check(config)
  blocks = dict(params['blocks'])
  owners = layers_lib.owners(config.layers())
  repeats = len(config.layers()) // len(blocks)
  for place in range(len(blocks)):
    here = [n for n, x in enumerate(owners) if x % len(blocks) == place]
    if not here:
      continue
    if [owners[n] // len(blocks) for n in here] != list(range(repeats)):
      raise ValueError(
        f'layer_{place}: owns keys and values in some repeats only.'
      )
    layer = blocks[f'layer_{place}']
    fitted = {
      name: np.ascontiguousarray(limits[here, side], np.float32)
      for side, name in enumerate(_NAMES)
    }
    attention = {**layer['attention'], **fitted}
    blocks[f'layer_{place}'] = {**layer, 'attention': attention}
  return {**params, 'blocks': blocks}


def check(config: model_config.ModelConfig) -> None:
  """Refuses a model without limits of its keys and values.

  Raises:
    ValueError: names the fields.
  """
  quantization = config.quantization
  if (quantization.kv, quantization.kv_scale) != ('int8', 'channel'):
    raise ValueError(
      f'model.quantization.kv={quantization.kv!r}, kv_scale='
      f"{quantization.kv_scale!r}: must be 'int8' and 'channel'; other scales"
      ' are made for each token, and cannot drift.'
    )
