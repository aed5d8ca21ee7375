"""A token-level head over a decoder's hidden states, which scores each token.

    probability = σ(head(hidden))        of the text up to and with a token

The head is one linear layer over the final normed hidden state
(`model/token_head.py`). Every call of the model computes that state, so that
the scores come from the same program.
"""

import hashlib
from typing import Any

import jax
import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.model import token_head

# A head's parameters and config, as `token_head.load` returns them.
Head = tuple[Any, token_head.TokenHeadConfig]


class Judge:
  """A head that scores the tokens of one decoder.

  Raises ValueError: bad names, or weights of another model or other dimensions.
  """

  def __init__(self, head: Head, decoder: decoder_lib.Decoder):
    params, config = head
    token_head.check(config)
    # Its C dimensions, in the order of the probabilities.
    self.names: tuple[str, ...] = tuple(config.names)
    d_model, classes = decoder.config.d_model, len(self.names)
    expected = {'w_DC': (d_model, classes), 'bias_C': (classes,)}
    found = {name: np.shape(x) for name, x in params.items()}
    if found != expected:
      raise ValueError(
        f'head has the weights {found}: expected {expected}, for'
        f' model.d_model={d_model} and the dimensions {list(self.names)}.'
      )
    self._decoder, self._model = decoder, decoder.replaced
    self._head = token_head.TokenHead(config)
    arrays = {name: np.asarray(x, np.float32) for name, x in params.items()}
    digest = hashlib.blake2b(repr(self.names).encode(), digest_size=16)
    for name in sorted(arrays):
      digest.update(np.ascontiguousarray(arrays[name]))
    # Digest of weights and dimensions; scores of another version are not this
    # head's.
    self.version: bytes = digest.digest()
    # Its parameters, on the decoder's device.
    self.params: Any = jax.device_put(arrays, decoder.cache.length_R.sharding)

  def check(self) -> None:
    """Raises ValueError if another model took the decoder's (`replace`)."""
    if self._decoder.replaced != self._model:
      raise ValueError(
        "head belongs to the decoder's former model, whose weights were"
        ' replaced: make another engine, with a head of the new model.'
      )

  def logits(self, params: Any, hidden_BLD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, L, C]; a pure function."""
    return self._head.apply({'params': params}, hidden_BLD)

  def probability(self, params: Any, hidden_BLD: jax.Array) -> jax.Array:
    """Returns float32 probabilities [B, L, C]; a pure function."""
    return jax.nn.sigmoid(self.logits(params, hidden_BLD))
