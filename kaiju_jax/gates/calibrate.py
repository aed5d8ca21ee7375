"""Refits the scales of a model's int8 codes (`experiments.calibrate`).

    limits of keys and values    per channel (`kv_scale='channel'`): the largest
                                 values on a text
    weights                      one scale per tensor, not per output channel

Limits that are fitted to an unsuitable text clip other texts' values, which the
quantization gate detects.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from kaiju_jax.data import chat
from kaiju_jax.data import conversations as conversations_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation.gate import reader as reader_lib
from kaiju_jax.interchange import own
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import int8
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.serving.drift import calibration

_LENGTH = 512


def write(
  model: str, out: str, text: str = '', is_per_tensor: bool = False
) -> None:
  """Exports a model with refitted scales.

  Args:
    model: a workdir or an export.
    out: the new folder.
    text: prose, or a .jsonl file of conversations (`data/conversations.py`),
      to fit the limits of keys and values to; '' keeps them.
    is_per_tensor: whether each weight gets one scale.

  Raises:
    OSError: the model or the text cannot be read, or `out` cannot be written.
    ValueError: the model has no such scales, or the text is too short.
  """
  found = load.base(model, 'float32')
  params = found.params
  if text:
    tokenizer = tokenizer_lib.load(found.tokenizer, found.config.vocab_size)
    params = fit_limits(found, read_texts(text, tokenizer))
  if is_per_tensor:
    params = scale_tensors(params)
  own.write(out, params, found.config, found.tokenizer)


def fit_limits(loaded: load.Loaded, texts: Sequence[np.ndarray]) -> Any:
  """Returns parameters whose limits are the largest values of some texts.

  Args:
    loaded: a model.
    texts: int32 [L] each, at most the model's positions.

  Raises:
    ValueError: the model has no limits, but a scale per token.
  """
  largest = np.zeros_like(calibration.read_limits(loaded.params, loaded.config))
  # Stored as floats, no value is cut at the former limit.
  quantization = dataclasses.replace(
    loaded.config.quantization, kv='none', qk='none', kv_scale='token'
  )
  config = dataclasses.replace(loaded.config, quantization=quantization)
  length = max(map(len, texts))
  decoder = play.decoder(
    loaded._replace(config=config), None, rows=1, length=length
  )
  reader = reader_lib.Reader(decoder, length)
  places = {x: n for n, x in enumerate(layers_lib.owners(config.layers()))}
  for tokens_L in texts:
    for owner, pair in reader.read(tokens_L).stored.items():
      for side, x_ULK in enumerate(pair):
        seen_K = np.abs(np.asarray(x_ULK)[:, : len(tokens_L)]).max((0, 1))
        limit_K = largest[places[owner], side]
        np.maximum(limit_K, seen_K, out=limit_K)
  return calibration.write_limits(loaded.params, loaded.config, largest)


def scale_tensors(params: Any) -> Any:
  """Returns deployed parameters whose weights have one scale per tensor.

  Raises:
    ValueError: none of them has codes.
  """
  count = 0

  def walk(tree: Any) -> Any:
    nonlocal count
    if isinstance(tree, int8.Quantized):
      count += 1
      return _scale_tensor(tree)
    if isinstance(tree, Mapping):
      return {name: walk(x) for name, x in tree.items()}
    return tree

  found = {**params, 'blocks': walk(params['blocks'])}
  if not count:
    raise ValueError('the model has no int8 weights to scale per tensor.')
  return found


def _scale_tensor(weight: int8.Quantized) -> int8.Quantized:
  """Returns a weight [N, …] with one scale per repeat of the layers' block."""
  x = np.asarray(weight.codes, np.float32) * np.asarray(weight.scales)
  inner = tuple(range(1, x.ndim))
  scale = np.abs(x).max(inner, keepdims=True) / int8.MAX_CODE
  scale = np.maximum(scale, np.finfo(np.float32).tiny)
  codes = np.rint(x / scale).astype(np.int8)
  return int8.Quantized(
    codes, np.broadcast_to(scale, weight.scales.shape).copy()
  )


def read_texts(
  path: str, tokenizer: tokenizer_lib.Tokenizer
) -> list[np.ndarray]:
  """Returns the tokens of a text: its conversations, or pieces of its prose."""
  if os.fspath(path).endswith('.jsonl'):
    format = chat.format_of(tokenizer)
    found = [
      format.document([(one.role, one.content) for one in talk.messages])
      for talk in conversations_lib.read(path, 'text')
    ]
    return [tokens_L[:_LENGTH] for tokens_L in found]
  tokens_L = tokenizer.encode(pathlib.Path(path).read_text(encoding='utf-8'))
  if not len(tokens_L):
    raise ValueError(f'text={path}: must hold text.')
  return [
    tokens_L[begin : begin + _LENGTH]
    for begin in range(0, len(tokens_L), _LENGTH)
  ]
