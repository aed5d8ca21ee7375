"""The token-level head: a linear layer that scores each token's text so far.

From the sources (the Kaiju post): an optional, additional classifier head, a
linear layer that outputs token-level metrics about the safety of the input
along various dimensions; its results augment sampling, in classifier-guided
beam search. The head reads the final normed hidden state of token t:

    logits[t] = hidden[t] · w + bias        probability[t] = σ(logits[t])

The result judges the text up to and including token t. Each dimension is a
separate yes-or-no question. Our guess: independent dimensions, a bias, float32
throughout, and that the head reads the hidden states of the output head.
"""

from collections.abc import Sequence
import dataclasses
import json
import os
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.sharding import collectives
from kaiju_jax.storage import strict_json
from kaiju_jax.storage import tensor_file

_FORMAT = 'kaiju_jax token_head 1'


@dataclasses.dataclass
class TokenHeadConfig:
  """The dimensions that a token-level head scores."""

  names: tuple[str, ...] = ()  # The C dimensions, in the order of the logits.


def check(config: TokenHeadConfig) -> None:
  """Refuses names that are missing, empty, padded with spaces or repeated.

  Raises:
    ValueError: names the value and what would be right.
  """
  names = config.names
  if isinstance(names, str) or not names:
    raise ValueError(
      f'token_head.names={names!r}: must be a tuple of at least one name.'
    )
  for name in names:
    if not isinstance(name, str) or not name or name != name.strip():
      raise ValueError(
        f'token_head.names: {name!r} must be text, with no space around it.'
      )
    if names.count(name) > 1:
      raise ValueError(
        f'token_head.names: {name!r} is given {names.count(name)} times; names'
        ' must differ.'
      )


class TokenHead(nn.Module):
  """The layer hidden_BLD → logits_BLC.

  A fresh head is all zeros. It gives every dimension a probability of ½, and
  its loss has no gradient in the model below it (its trunk) until its own
  weights have moved.
  """

  config: TokenHeadConfig

  @nn.compact
  def __call__(self, hidden_BLD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, L, C].

    Args:
      hidden_BLD: hidden states, from `Transformer.hidden` or from decoding.
    """
    check(self.config)
    zeros = nn.initializers.zeros_init()
    classes = len(self.config.names)
    shape = hidden_BLD.shape[-1], classes
    w_DC = self.param('w_DC', zeros, collectives.local_shape('DC', shape))
    bias_C = self.param('bias_C', zeros, (classes,))
    hidden_BLD = hidden_BLD.astype(jnp.float32)
    w_DC = collectives.whole(w_DC)
    logits_BLC = jnp.einsum('BLD,DC->BLC', hidden_BLD, w_DC)
    return logits_BLC + bias_C[None, None]


def reweigh(logits_BLC: jax.Array, weight_C: jax.Array) -> jax.Array:
  """Returns the head's term of a text's score, float32 [B, L], at most 0 nats.

      Σ_C  weight · log P(yes)  where weight > 0,
           |weight| · log P(no)  where weight < 0

  The term judges the whole text up to a token. So a search adds the latest
  token's term to the sum of the text's log-probabilities, not one term per
  step. (FUDGE, Yang and Klein 2021, guides by a product of the two
  probabilities; the weights as its exponents are our guess.)

  Args:
    logits_BLC: the logits of a `TokenHead`.
    weight_C: positive for a dimension to favour, negative for one to avoid, 0
      for one to ignore.
  """
  weight_BLC = jnp.broadcast_to(
    jnp.asarray(weight_C, jnp.float32), logits_BLC.shape
  )
  judged_BLC = jnp.where(weight_BLC > 0, logits_BLC, -logits_BLC)
  # In an ignored dimension 0 · log 0 would be NaN.
  added_BLC = jnp.where(
    weight_BLC == 0, 0, jnp.abs(weight_BLC) * jax.nn.log_sigmoid(judged_BLC)
  )
  return jnp.sum(added_BLC, axis=-1)


def save(
  path: str | os.PathLike[str],
  params: Any,
  config: TokenHeadConfig,
  models: Sequence[str] = (),
) -> None:
  """Writes a head and the names of its dimensions; the file is whole or absent.

  Args:
    path: the path of the file.
    params: the head's parameters.
    config: its dimensions.
    models: digests of the model whose hidden states it reads, in all its forms;
      none if they are not known.

  Raises:
    ValueError: bad names, or weights of other dimensions.
    OSError: the file cannot be written.
  """
  check(config)
  tensors = {name: np.asarray(x, np.float32) for name, x in params.items()}
  _check_tensors(tensors, config)
  metadata = {'format': _FORMAT, 'names': json.dumps(list(config.names))}
  if models:
    metadata['models'] = json.dumps(list(models))
  tensor_file.write(path, tensors, metadata)


def load(
  path: str | os.PathLike[str],
  names: Sequence[str] | None = None,
  d_model: int | None = None,
  model: str = '',
) -> tuple[Any, TokenHeadConfig]:
  """Returns a head's parameters and its config.

  Args:
    path: the path of a file that `save` wrote.
    names: the dimensions that the caller expects, in order; None for any.
    d_model: D of the model whose hidden states the head will read; None for
      any.
    model: digest of that model; '' for any.

  Raises:
    OSError: the file is missing or cannot be read.
    ValueError: the file is no head, or its dimensions, D or model are not the
      expected ones.
  """
  tensors, metadata = tensor_file.read(path, _FORMAT)
  try:
    names_held = strict_json.parse(metadata.get('names', '[]'))
    config = TokenHeadConfig(tuple(names_held))
    check(config)
    _check_tensors(tensors, config)
    if names is not None:
      _check_names(config.names, tuple(names))
    found = tensors['w_DC'].shape[0]
    if d_model not in (None, found):
      raise ValueError(
        f'w_DC: reads hidden states of {found} values, model.d_model={d_model}.'
      )
    models = strict_json.parse(metadata.get('models', '[]'))
    if model and models and model not in models:
      raise ValueError(
        'reads the hidden states of another model, of digest'
        f' {" or ".join(map(str, models))}, not {model}.'
      )
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return {name: jnp.asarray(x) for name, x in tensors.items()}, config


def _check_tensors(tensors, config: TokenHeadConfig) -> None:
  classes = len(config.names)
  rows = tensors['w_DC'].shape[0] if 'w_DC' in tensors else 'D'
  wanted = {'w_DC': (rows, classes), 'bias_C': (classes,)}
  found = {name: x.shape for name, x in tensors.items()}
  if found != wanted:
    raise ValueError(
      f'a token-level head of {classes} dimensions has the weights {wanted},'
      f' not {found}.'
    )


def _check_names(found: tuple[str, ...], wanted: tuple[str, ...]) -> None:
  if found == wanted:
    return
  missing = [name for name in wanted if name not in found]
  unknown = [name for name in found if name not in wanted]
  if missing or unknown:
    how = f'missing {missing}, not asked for {unknown}'
  else:
    how = 'the same in another order'
  raise ValueError(
    f'the head has the dimensions {list(found)}, expected {list(wanted)}:'
    f' {how}.'
  )
