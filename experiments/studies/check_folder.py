"""Checks a Hugging Face folder: our logits, and what int8 costs its model.

    parity        the largest difference of our logits from those of
                  `transformers`, over the largest logit, in float32
    perplexity    exp(mean loss) of a text, as a server computes it, for each
                  form that it can serve, beside that of floats: KL(floats ‖
                  form) in nats per token, and the share of tokens whose
                  likeliest successor is the same

`transformers` is used if it is installed. No code of the folder is run.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import itertools
import os
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax import visibility
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation.gate import divergence
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import load
from kaiju_jax.runs import play

PARITY = 64  # Tokens.
LENGTH = 256  # Tokens of a row of the text whose perplexity is measured.
# How a folder can be served; the first is what the others are compared with.
FORMS = tuple(
  itertools.product(
    quantization_config.ARMS, quantization_config.CHOICES['kv'][::-1]
  )
)


class Parity(NamedTuple):
  """Our logits beside those of `transformers`."""

  difference: float  # The largest difference, over the largest logit.
  version: str  # That of `transformers`.


def check(
  folder: str | os.PathLike[str],
  text: str | None = None,
  tokens: int = 8 * LENGTH,
) -> str:
  """Returns the table of a folder, in Markdown.

  Args:
    folder: the Hugging Face folder.
    text: the text whose perplexity is measured; by default that of Python's
      documentation.
    tokens: how many tokens of the text are read, at most.

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
  rows = _rows(tokenizer, text or _text(), loaded.config.max_length, tokens)
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
  page = report.Report().say(said)
  page.table(
    list(map(_cells, FORMS, compare(folder, tokenizer, rows))),
    (
      *('--int8', '--kv', 'perplexity', 'against floats', '95 %'),
      *('KL', 'same likeliest'),
    ),
  )
  page.say(
    f'Perplexity of {sum(len(one) - 1 for one in rows):,} tokens in rows of'
    f' {len(rows[0])}; KL in nats per token.'
  )
  return page.markdown()


def _cells(
  form: tuple[str, str], found: Sequence[divergence.Differences]
) -> tuple[str, ...]:
  """Returns a form's row of the table; `found` are those of rows of tokens."""
  one = divergence.summarize(found)
  loss = np.concatenate([row.candidate_loss_L for row in found]).mean()
  rises = [(x.candidate_loss_L - x.baseline_loss_L).mean() for x in found]
  mean = statistics.bootstrap_mean(rises)
  interval = f'{np.expm1(mean.low):+.2%} to {np.expm1(mean.high):+.2%}'
  return (
    *form,
    f'{np.exp(loss):.4f}',
    f'{np.expm1(one.loss):+.3%}',
    interval if mean.count > 1 else 'none of one row',
    f'{one.kl:.5f}',
    f'{one.agreement:.2%}',
  )


def parity(
  folder: str | os.PathLike[str], loaded: load.Loaded, tokens_L: np.ndarray
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


def compare(
  folder: str | os.PathLike[str],
  tokenizer: tokenizer_lib.Tokenizer,
  rows: Sequence[np.ndarray],
) -> list[list[divergence.Differences]]:
  """Compares each of `FORMS` with the first, as a server computes them.

  Args:
    folder: the Hugging Face folder.
    tokenizer: the folder's.
    rows: int32 [≤ L] each; the first is the longest.

  Returns:
    The differences of each row, for each form.
  """
  length = len(rows[0])
  decoders = list(_decoders(folder, tokenizer, length))
  found = [[] for _ in decoders]
  for row in rows:
    padded_1L = np.pad(row, (0, length - len(row)))[None]
    floats = None
    for decoder, differences in zip(decoders, found):
      opened = decoder.open()
      hidden_1LD = decoder.extend_text([opened], padded_1L, [len(row)])
      decoder.close(opened)
      logits_LV = np.asarray(decoder.logits(hidden_1LD)[0, : len(row)])
      floats = logits_LV if floats is None else floats
      differences.append(divergence.compare([floats], [logits_LV], row))
  return found


def _decoders(folder, tokenizer, length: int) -> Iterator[Any]:
  """Yields a decoder of each form; all forms with codes share them."""
  for has_codes, forms in itertools.groupby(FORMS, lambda x: x[0] != 'none'):
    arm = quantization_config.for_serving('all' if has_codes else 'none')
    loaded = load.from_anywhere(folder, quantization=arm)
    for form in forms:
      config = dataclasses.replace(
        loaded.config, quantization=quantization_config.for_serving(*form)
      )
      yield play.decoder(
        loaded._replace(config=config), tokenizer, rows=1, length=length
      )


def _rows(
  tokenizer: tokenizer_lib.Tokenizer, text: str, longest: int, most: int
) -> list[np.ndarray]:
  """Returns rows of a text's first `most` tokens."""
  length = min(LENGTH, longest - 1)
  tokens_L = tokenizer.encode(text[: tokenizer.longest * most])[:most]
  if len(tokens_L) < 2:
    raise ValueError(f'text: {len(tokens_L)} tokens: must be at least 2.')
  rows = [
    tokens_L[begin : begin + length]
    for begin in range(0, len(tokens_L), length)
  ]
  return [row for row in rows if len(row) > 1]


def _text() -> str:
  from pydoc_data import topics

  return '\n\n'.join(text for _, text in sorted(topics.topics.items()))
