"""Embedders, which turn texts into vectors, by the name that a flag gives.

    ngrams, lsa, npy:FILE    see `data/curation/similarity.py`
    model:WORKDIR            the mean hidden state of a run's model
    t5:FOLDER                the mean output of a T5 encoder, from a folder in
                             the format of transformers

From the sources: "similarity via T5 embedding". They do not name the T5, nor
how its outputs become one vector. Our guess: the mean over a text's tokens, and
texts cut to one row of the run or to 512 tokens of T5.
"""

from collections.abc import Sequence
import itertools
import pathlib
from typing import Any

import numpy as np

from kaiju_jax.data.curation import similarity

NAMES = 'ngrams, lsa, npy:FILE, model:WORKDIR, t5:FOLDER'
_T5_LENGTH = 512
_TEXTS = 16  # Texts per call of a T5.
_ROWS = 8  # Rows per call of a run's model.


def parse(name: str) -> similarity.Embedder:
  """Returns the embedder that a flag's value names, with its model loaded.

  Raises:
    OSError, ValueError: names the flag, its value and what would be right.
  """
  kind, colon, path = name.partition(':')
  if not colon and kind in ('ngrams', 'lsa'):
    return similarity.Ngrams() if kind == 'ngrams' else similarity.Lsa()
  if not path or kind not in ('npy', 'model', 't5'):
    raise ValueError(f'--embedder={name}: must be one of {NAMES}.')
  if kind == 'npy':
    return similarity.Npy(path)
  return Model(path) if kind == 'model' else T5(path)


class Model:
  """An embedder by the mean of a run's hidden states after the last norm.

  Several texts share a row and do not see each other. A text that is longer
  than a row is cut to the row.
  """

  distributions = False

  def __init__(self, workdir: str):
    """Loads the latest checkpoint.

    Raises:
      OSError, ValueError, checkpoint.RestoreError: see `load.from_workdir`.
    """
    from kaiju_jax.data import tokenizer
    from kaiju_jax.runs import load

    self.name: str = f'model:{workdir}'
    self._loaded = load.from_workdir(workdir)
    self._tokenizer = tokenizer.load(
      self._loaded.tokenizer, self._loaded.config.vocab_size
    )
    self._length = self._loaded.experiment.data.length

  def embed(
    self,
    texts: Sequence[str],
    watch: similarity.Watch = similarity.ignore_progress,
  ) -> np.ndarray:
    from kaiju_jax.data import packing

    hidden = self._compiled()
    sums = np.zeros((len(texts), self._loaded.config.d_model), np.float64)
    counts = np.zeros(len(texts))
    rows = self._rows(watch(texts))
    while batch := list(itertools.islice(rows, _ROWS)):
      # Rows without text fill up the last batch, so that it compiles nothing.
      blank = batch[0]._replace(source=np.full(self._length, -1, np.int32))
      batch += [blank] * (_ROWS - len(batch))
      stacked = packing.stack(batch)
      source = stacked.source_BL.ravel()
      own = source >= 0
      flat = np.asarray(hidden(stacked), np.float32).reshape(len(source), -1)
      np.add.at(sums, source[own], flat[own])
      np.add.at(counts, source[own], 1)
    return (sums / counts[:, None]).astype(np.float32)

  def _rows(self, texts):
    """Yields packed rows; the `source` of a token is its text's index."""
    from kaiju_jax.data import packing

    pieces, used = [], 0
    for number, text in enumerate(texts):
      tokens = np.concatenate(
        [
          [self._tokenizer.bos_id],
          # Text after the row's end need not be encoded: few tokens have more
          # than sixteen characters.
          self._tokenizer.encode(text[: 16 * self._length]),
        ]
      )[: self._length]
      if used + len(tokens) > self._length:
        yield packing.row(pieces, self._length)
        pieces, used = [], 0
      pieces.append(packing.Piece(tokens, source=number))
      used += len(tokens)
    if pieces:
      yield packing.row(pieces, self._length)

  def _compiled(self) -> Any:
    """Returns a compiled function from a batch to hidden states [B, L, D]."""
    import jax

    from kaiju_jax.model import transformer
    from kaiju_jax.runs import load

    model = transformer.Transformer(self._loaded.config)
    variables = load.variables(self._loaded)

    @jax.jit
    def hidden(variables, batch):
      return model.apply(
        variables, batch.tokens_BL, batch.visibility(), method='hidden'
      )

    return lambda batch: hidden(variables, batch)


class T5:
  """An embedder by the mean of a T5 encoder's outputs over a text's tokens."""

  distributions = False

  def __init__(self, folder: str):
    """Loads the encoder and its tokenizer.

    Raises:
      FileNotFoundError: the folder does not exist or has no config.json.
      ValueError: transformers is missing, or the folder holds no T5.
    """
    self.name: str = f't5:{folder}'
    if not (pathlib.Path(folder) / 'config.json').is_file():
      raise FileNotFoundError(
        f'--embedder={self.name}: no config.json there; expected the folder of'
        ' a T5 in the format of transformers.'
      )
    try:
      import torch
      import transformers
    except ImportError as error:
      raise ValueError(
        f'--embedder={self.name}: needs torch and transformers; install the'
        " extra with pip install 'kaiju_jax[t5]'."
      ) from error
    self._torch = torch
    try:
      self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
      self._model = transformers.T5EncoderModel.from_pretrained(folder).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
      line = ' '.join(str(error).split())
      raise ValueError(f'--embedder={self.name}: not a T5: {line}') from error

  def embed(
    self,
    texts: Sequence[str],
    watch: similarity.Watch = similarity.ignore_progress,
  ) -> np.ndarray:
    vectors = []
    for first in watch(range(0, len(texts), _TEXTS)):
      batch = self._tokenizer(
        list(texts[first : first + _TEXTS]),
        padding=True,
        truncation=True,
        max_length=_T5_LENGTH,
        return_tensors='pt',
      )
      seen_BL = batch['attention_mask']
      with self._torch.inference_mode():
        hidden_BLD = self._model(
          input_ids=batch['input_ids'], attention_mask=seen_BL
        ).last_hidden_state
      seen_BL1 = seen_BL[:, :, None].to(hidden_BLD.dtype)
      sums_BD = (hidden_BLD * seen_BL1).sum(1)
      vectors.append((sums_BD / seen_BL1.sum(1)).float().numpy())
    return np.concatenate(vectors)
