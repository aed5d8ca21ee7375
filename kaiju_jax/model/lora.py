"""Adapters of low rank (LoRA) beside frozen weights.

    y = x·W + scale · (x·A)·B        scale = alpha / rank

(Hu et al. 2021.) W keeps its bits: int8 codes with their scales, or floats. A
is drawn and B is 0, so that a new adapter changes no logit. An adapter is a
part of the tree of parameters, beside its weight:

    w_q_DHK           W
    lora_down_q_DR    A: the dimensions that W's matmul sums over, then R
    lora_up_q_RHK     B: R, then W's outputs; D comes first, as in lora_up_o_DR
    lora_scale_q      the scale, which is not trained

So the layers, a mesh, the optimizer and decoding treat adapters as any other
parameters, and the letters shard them like their weights. Tables of the
vocabulary take no adapter.
"""

from collections.abc import Callable
from collections.abc import Mapping
import fnmatch
from typing import Any
from typing import NamedTuple
import zlib

import jax
import jax.numpy as jnp

from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import clamp
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import rules

_DOWN, _UP, _SCALE = 'lora_down_', 'lora_up_', 'lora_scale_'


class Names(NamedTuple):
  """The names of one weight's adapter."""

  down: str
  up: str
  scale: str


class Adapted(NamedTuple):
  """A weight in use and its adapter, as a layer multiplies by them."""

  weight: jax.Array | int8.Quantized  # The frozen weight.
  down: jax.Array  # A, its contracted dimensions whole or this device's part.
  up: jax.Array  # B, likewise.
  scale: jax.Array  # float32 scalar.


def names_of(weight: str) -> Names:
  """Returns the names of the adapter of a weight such as 'w_q_DHK'."""
  letters = rules.letters_of(weight)
  stem = weight.removeprefix('w_').removesuffix(f'_{letters}')
  summed = rules.CONTRACTED[weight]
  outputs = ''.join(letter for letter in letters if letter not in summed)
  up = 'DR' if outputs == 'D' else f'R{outputs}'
  return Names(
    f'{_DOWN}{stem}_{summed}R', f'{_UP}{stem}_{up}', f'{_SCALE}{stem}'
  )


def is_trained(name: str) -> bool:
  """Returns whether a parameter's own name is that of an adapter's matrix."""
  return name.startswith((_DOWN, _UP))


def split(
  params: Mapping[str, Any], tops: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the trees of what is trained and of what is frozen.

  Args:
    params: a tree of dictionaries.
    tops: top-level names beside the adapters that are trained.
  """

  def part(tree, is_wanted: Callable[[str], bool]) -> dict[str, Any]:
    out = {}
    for name, node in tree.items():
      if not isinstance(node, Mapping):
        if is_wanted(name):
          out[name] = node
      elif found := part(node, is_wanted):
        out[name] = found
    return out

  own = {name: tree for name, tree in params.items() if name in tops}
  rest = {name: tree for name, tree in params.items() if name not in tops}
  trained = part(rest, is_trained) | own
  return trained, part(rest, lambda name: not is_trained(name))


def attach(
  params: Mapping[str, Any],
  rank: int,
  alpha: float,
  patterns: str = '*',
  seed: int = 0,
) -> dict[str, Any]:
  """Returns parameters with an adapter beside each weight that is named.

  A's numbers have a variance of 1 over what they sum, drawn from the seed and
  the weight's path.

  Args:
    params: float or deployed parameters, stacked over the repeats.
    rank: R of each adapter.
    alpha: the scale times the rank.
    patterns: see `choose`.
    seed: the seed of A.

  Raises:
    ValueError: see `choose`.
  """
  chosen = choose(params, patterns)

  def with_adapters(tree, path):
    out = {}
    for name, node in tree.items():
      place = f'{path}{name}'
      out[name] = node
      if isinstance(node, Mapping):
        out[name] = with_adapters(node, f'{place}.')
      elif place in chosen:
        key = jax.random.fold_in(
          jax.random.key(seed), zlib.crc32(place.encode())
        )
        out |= _start(name, node.shape, rank, alpha, key)
    return out

  return {**params, 'blocks': with_adapters(params['blocks'], '')}


def choose(params: Mapping[str, Any], patterns: str) -> list[str]:
  """Returns the paths of the weights that patterns name.

  Args:
    params: the model's parameters.
    patterns: words with * and ?, each for whole paths such as
      'layer_0.attention.w_q_DHK', names such as 'w_q_DHK', or names without
      their letters, such as 'w_q'.

  Raises:
    ValueError: a pattern names no weight.
  """
  places = list(_weights(params['blocks']))
  chosen = {}
  for pattern in patterns.split():
    found = [
      place
      for place in places
      if any(fnmatch.fnmatchcase(one, pattern) for one in _spellings(place))
    ]
    if not found:
      known = dict.fromkeys(place.rpartition('.')[2] for place in places)
      raise ValueError(
        f'lora.matrices={patterns!r}: {pattern!r} names no weight of the'
        f' layers, which are {", ".join(known)}; tables of the vocabulary take'
        ' no adapter.'
      )
    chosen |= dict.fromkeys(found)
  return list(chosen)


def _spellings(place: str) -> tuple[str, str, str]:
  name = place.rpartition('.')[2]
  return place, name, name.removesuffix(f'_{rules.letters_of(name)}')


def _weights(tree: Mapping[str, Any], path: str = ''):
  for name, node in tree.items():
    if isinstance(node, Mapping):
      yield from _weights(node, f'{path}{name}.')
    elif name in rules.CONTRACTED:
      yield f'{path}{name}'


def _start(name: str, shape, rank: int, alpha: float, key) -> dict[str, Any]:
  """Returns a new adapter of a stacked weight [N, …]."""
  repeats, *own = shape
  sizes = dict(zip(rules.letters_of(name), own)) | {'R': rank}
  names = names_of(name)

  def shape_of(one):
    return repeats, *(sizes[letter] for letter in rules.letters_of(one))

  summed = 1
  for letter in rules.CONTRACTED[name]:
    summed *= sizes[letter]
  return {
    names.down: jax.random.normal(key, shape_of(names.down)) * summed**-0.5,
    names.up: jnp.zeros(shape_of(names.up)),
    names.scale: jnp.full((repeats,), alpha / max(rank, 1), jnp.float32),
  }


def add(
  spec: str, x: jax.Array | int8.Quantized, y: jax.Array, adapted: Adapted
) -> jax.Array:
  """Returns y plus the adapter's part of the projection, in y's dtype.

  Args:
    spec: the projection's, such as 'BLD,DHK->BLHK'.
    x: the activations that the weight multiplies; codes count by their values,
      and their carrier gets the gradient.
    y: the weight's part.
    adapted: the weight with its adapter.
  """
  inputs, outputs = spec.split('->')
  x_letters, w_letters = inputs.split(',')
  summed = ''.join(letter for letter in w_letters if letter in x_letters)
  middle = f'{x_letters.removesuffix(summed)}R'
  kept = ''.join(letter for letter in w_letters if letter not in summed)
  up = 'DR' if kept == 'D' else f'R{kept}'
  x = qat.values(x)
  down = jnp.einsum(
    f'{x_letters},{summed}R->{middle}',
    x,
    adapted.down.astype(x.dtype),
    preferred_element_type=jnp.float32,
  )
  raised = jnp.einsum(
    f'{middle},{up}->{outputs}',
    down.astype(x.dtype),
    adapted.up.astype(x.dtype),
    preferred_element_type=jnp.float32,
  )
  return y + (adapted.scale * raised).astype(y.dtype)


def is_adapted(params: Any) -> bool:
  """Returns whether a tree of parameters holds an adapter."""
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return any(rules.name_of(path).startswith(_SCALE) for path, _ in leaves)


def refuse(params: Any) -> None:
  """Raises ValueError where parameters hold adapters, which `merge` adds up."""
  if is_adapted(params):
    raise ValueError(
      'the model holds adapters, for which this format has no place; merge them'
      ' first (experiments.convert does).'
    )


def merge(params: Mapping[str, Any], config: model_config.ModelConfig) -> Any:
  """Returns parameters in which adapters are added to their weights.

  Codes are added to as floats and coded again, with new scales; weights without
  an adapter keep their bits. The limit of a feed-forward's hidden activations
  follows its weights.

  Args:
    params: stacked parameters with adapters.
    config: the model's config.
  """

  def merged(tree):
    out = {}
    for name, node in tree.items():
      if isinstance(node, Mapping):
        out[name] = merged(node)
      elif name in rules.CONTRACTED and names_of(name).scale in tree:
        down, up, scale = (tree[key] for key in names_of(name))
        stem = name.removesuffix(f'_{rules.letters_of(name)}')
        if f'bungee_{stem}' in tree:  # It stretches the sum, once merged.
          scale = scale * jnp.exp(-tree[f'bungee_{stem}'])
        adapter = down, up, scale
        # A loop over the repeats, as `deployed.quantize` makes codes.
        out[name] = jax.lax.map(
          lambda parts, name=name: _merge(name, *parts), (node, *adapter)
        )
      elif not name.startswith('lora_'):
        out[name] = node
    if 'hidden_limit' in out.get('feedforward', {}):
      limits = clamp.weight_rms_limit
      out['feedforward']['hidden_limit'] = jax.lax.map(
        lambda parts: limits(*parts, config.quantization.clamp_hidden_k),
        (
          out['feedforward']['w_in_DF'],
          out['feedforward_norm']['gain_D'],
        ),
      )
    return out

  return jax.jit(merged)(params)


def _merge(name: str, weight, down, up, scale):
  """Returns one repeat's weight with its adapter added."""
  letters, names = rules.letters_of(name), names_of(name)
  spec = f'{rules.letters_of(names.down)},{rules.letters_of(names.up)}'
  is_coded = isinstance(weight, int8.Quantized)
  whole = int8.dequantize(weight) if is_coded else weight
  whole = whole + scale * jnp.einsum(f'{spec}->{letters}', down, up)
  if not is_coded:
    return whole
  axes = tuple(map(letters.index, rules.CONTRACTED[name]))
  return int8.Quantized(*int8.quantize(whole, axes))
