"""Checks a Hugging Face folder: our logits, and what int8 costs its model.

    parity        the largest difference of our logits from those of
                  `transformers`, over the largest logit, in float32
    perplexity    exp(mean loss) of a text, as a server computes it, for each
                  form that it can serve

`transformers` is used if it is installed. No code of the folder is run.
"""

from collections.abc import Sequence
import dataclasses
import math
import os
import pathlib
from typing import NamedTuple

import numpy as np

from kaiju_jax import visibility
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import report
from kaiju_jax.runs import load
from kaiju_jax.runs import play

PARITY = 64  # Tokens.
LENGTH, ROWS = 256, 8  # Of the text whose perplexity is measured.


class Parity(NamedTuple):
  """Our logits beside those of `transformers`."""

  difference: float  # The largest difference, over the largest logit.
  version: str  # That of `transformers`.


def check(folder: str | os.PathLike, text: str | None = None) -> str:
  """Returns the table of a folder, in Markdown.

  Args:
    folder: the Hugging Face folder.
    text: the text whose perplexity is measured; by default that of Python's
      documentation.

  Raises:
    OSError, ValueError: see `load.from_anywhere`; or the text has fewer than
      two tokens.
  """
  loaded = load.from_anywhere(folder)
  if not loaded.tokenizer:
    raise ValueError(
      f'{folder}: tokenizer.json: not found; it makes the tokens.'
    )
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  rows = _rows(tokenizer, text or _text(), loaded.config.max_length)
  found = parity(folder, loaded, rows[0][:PARITY])
  del loaded
  count = min(len(rows[0]), PARITY)
  said = f'{folder}, float32, {count} tokens:'
  if found is None:
    said += ' transformers is not installed, so that there is no parity.'
  else:
    said += (
      f' the largest difference from transformers {found.version} is'
      f' {found.difference:.1e} of the largest logit.'
    )
  arms = [
    ('none', 'none'),
    *((arm, 'int8') for arm in quantization_config.ARMS),
  ]
  results = [perplexity(folder, rows, *one) for one in arms]
  page = report.Report().say(said)
  page.table(
    [
      (*arm, f'{one:.4f}', f'{one / results[0] - 1:+.3%}')
      for arm, one in zip(arms, results)
    ],
    ('--int8', '--kv', 'perplexity', 'against floats'),
  )
  page.say(f'Perplexity of {sum(len(one) - 1 for one in rows):,} tokens.')
  return page.markdown()


def parity(
  folder: str | os.PathLike, loaded: load.Loaded, tokens_L: np.ndarray
) -> Parity | None:
  """Compares logits; returns None if `transformers` is not installed.

  Args:
    folder: the Hugging Face folder.
    loaded: its model, in float32.
    tokens_L: the tokens that both read.
  """
  try:
    import torch
    import transformers
  except ImportError:
    return None
  folder, beside = pathlib.Path(folder), {}
  if gguf_folder.is_gguf(folder):
    folder, beside = folder.parent, {'gguf_file': folder.name}
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
    folder,
    **beside,
    dtype=torch.float32,
    attn_implementation='eager',
    trust_remote_code=False,
    local_files_only=True,
  )
  with torch.no_grad():
    tokens = torch.tensor(tokens_L[None].astype(np.int64))
    wanted_LV = theirs.eval()(tokens).logits[0].numpy()
  config = dataclasses.replace(loaded.config, dtype='float32')
  model = transformer.Transformer(config)
  seen = visibility.causal(len(tokens_L))
  ours_LV = np.asarray(
    model.apply({'params': loaded.params}, tokens_L[None], seen)
  )[0]
  width = min(ours_LV.shape[1], wanted_LV.shape[1])
  difference = np.abs(ours_LV[:, :width] - wanted_LV[:, :width]).max()
  largest = np.abs(wanted_LV).max()
  return Parity(float(difference / largest), transformers.__version__)


def perplexity(
  folder: str | os.PathLike, rows: Sequence[np.ndarray], arm: str, kv: str
) -> float:
  """Returns the perplexity of rows of tokens, as a server computes it.

  Args:
    folder: the Hugging Face folder.
    rows: int32 [L] each.
    arm: one of `quantization.config.ARMS`.
    kv: 'int8' or 'none'.
  """
  loaded = load.from_anywhere(
    folder, quantization=quantization_config.for_serving(arm, kv)
  )
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  decoder = play.decoder(
    loaded, tokenizer, rows=1, length=max(map(len, rows)) + 1
  )
  generator = generator_lib.Generator(decoder, tokenizer)
  requests = [request_lib.Request(row, 1, scores_prompt=True) for row in rows]
  losses = [
    -one.prompt_log_probabilities for one in generator.generate(requests)
  ]
  return math.exp(np.concatenate(losses).mean())


def _rows(
  tokenizer: tokenizer_lib.Tokenizer, text: str, most: int
) -> list[np.ndarray]:
  """Returns the first rows of a text's tokens."""
  length = min(LENGTH, most - 1)
  tokens_L = tokenizer.encode(text[: tokenizer.longest * length * ROWS])
  if len(tokens_L) < 2:
    raise ValueError(f'text: {len(tokens_L)} tokens: must be at least 2.')
  rows = [
    tokens_L[begin : begin + length]
    for begin in range(0, min(len(tokens_L), length * ROWS), length)
  ]
  return [row for row in rows if len(row) > 1]


def _text() -> str:
  from pydoc_data import topics

  return '\n\n'.join(text for _, text in sorted(topics.topics.items()))
