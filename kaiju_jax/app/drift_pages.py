"""Pages of keys and values of invented characters, some in another script.

A drill of drift (`drift_drill.py`) draws its windows from these pages. The
values are real: the model reads each conversation. A model with a scale per
token gets limits per channel that fit its own dialogues.
"""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import chat
from kaiju_jax.data.dialogues import personas
from kaiju_jax.data.dialogues import talk
from kaiju_jax.evaluation.gate import reader as reader_lib
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.drift import histograms
from kaiju_jax.tasks.dialogues import rows

PAGE = 64
# No training row of dialogues is drawn from this seed (`rows.py`).
_SEED = 2**36
_SCRIPT = str.maketrans(
  'abcdefghijklmnopqrstuvwxyz', 'абцдефгхийклмнопярстувщжуз'
)


class Page(NamedTuple):
  """A page of a conversation.

  Attributes:
    character: whose it is.
    tokens_S: int32.
    sizes: float32 [layers, 2, S, K], |keys| and |values|.
  """

  character: bytes
  tokens_S: np.ndarray
  sizes: np.ndarray

  def encode(self, limits: np.ndarray) -> histograms.Sample:
    """Returns what a cache holds, with limits [layers, 2, K]."""
    codes = np.rint(self.sizes * (histograms.RAIL / limits[:, :, None]))
    codes = np.minimum(codes, histograms.RAIL).astype(np.uint8)
    return histograms.Sample(self.character, self.tokens_S, codes)


def write_in_script(text: str) -> str:
  """Returns a text's words in Cyrillic letters."""
  return text.lower().translate(_SCRIPT)


def converse(
  format: chat.Format, number: int, room: int, foreign: bool = False
) -> tuple[np.ndarray, int]:
  """Returns a conversation's tokens, int32 [L], and where its talk begins.

  Args:
    format: encodes messages.
    number: of the conversation; each has a character of its own.
    room: tokens of all of it, at most.
    foreign: whether its messages are in another script.
  """
  rng = np.random.default_rng((_SEED, number))
  persona = personas.draw(rng, mixed=True)
  head_L = rows.head(persona, format)

  def encode(role: str, text: str) -> np.ndarray:
    return format.message(role, write_in_script(text) if foreign else text)

  said = talk.path(
    rng, persona, room - len(head_L), lambda *one: len(encode(*one))
  )
  tokens_L = np.concatenate([head_L, *(encode(*one) for one in said)])
  return tokens_L[:room].astype(np.int32), len(head_L)


def open_reader(loaded: load.Loaded, length: int) -> reader_lib.Reader:
  """Returns a reader of a model, for texts of up to `length` tokens."""
  decoder = play.decoder(loaded, None, rows=1, length=length)
  return reader_lib.Reader(decoder, length)


def cut(
  reader: reader_lib.Reader,
  tokens_L: np.ndarray,
  begin: int,
  character: bytes,
) -> list[Page]:
  """Returns the pages of a conversation behind its first `begin` tokens."""
  stored = reader.read(tokens_L).stored
  sizes = np.array(
    [[_measure(x) for x in stored[n]] for n in sorted(stored)], np.float32
  )
  return [
    Page(character, tokens_L[n : n + PAGE], sizes[:, :, n : n + PAGE])
    for n in range(begin, len(tokens_L) - PAGE + 1, PAGE)
  ]


def fit(pages: Sequence[Page]) -> np.ndarray:
  """Returns limits that all but `calibration.BEYOND` of the values keep."""
  sizes = np.concatenate([one.sizes for one in pages], axis=2)
  limits = np.quantile(sizes, 1 - calibration.BEYOND, axis=2)
  return limits.astype(np.float32)


def limit(loaded: load.Loaded, limits: np.ndarray) -> load.Loaded:
  """Returns a model with these limits per channel, [layers, 2, K].

  Raises:
    ValueError: its keys and values are floats, or it has several heads.
  """
  config = loaded.config
  quantization = config.quantization
  if quantization.kv != 'int8' or config.num_kv_heads > 1:
    raise ValueError(
      f'model.quantization.kv={quantization.kv!r}, model.num_kv_heads='
      f"{config.num_kv_heads}: must be 'int8' and 1, because only limits per"
      ' channel drift.'
    )
  config = dataclasses.replace(
    config, quantization=dataclasses.replace(quantization, kv_scale='channel')
  )
  params = calibration.write_limits(loaded.params, config, limits)
  return loaded._replace(params=params, config=config, content='')


def _measure(x) -> np.ndarray:
  """Returns |values| [L, K] of codes [1, L, K], with either kind of scale."""
  scales = np.asarray(x.scales)
  scales = scales[0, :, None] if scales.ndim == 2 else scales
  return np.abs(np.asarray(x.codes)[0].astype(np.float32) * scales)
