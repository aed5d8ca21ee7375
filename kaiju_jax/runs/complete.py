"""Continues prompts with a loaded model: text in, text out."""

from collections.abc import Sequence

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.runs import load
from kaiju_jax.runs import play


def texts(
  loaded: load.Loaded,
  prompts: Sequence[str],
  max_tokens: int = 200,
  sampling: sampling_lib.Sampling | None = None,
) -> list[str]:
  """Returns each prompt's continuation; generates all of them together.

  Args:
    loaded: a model from `load.from_workdir` or `load.from_export`.
    prompts: texts, each of which opens a document.
    max_tokens: the most tokens of a continuation.
    sampling: the sampling of tokens; greedy by default.

  Raises:
    ValueError: a prompt and its continuation are longer than the model's
      `max_length`, or a setting is wrong.
    request.BadLogits: the model gave logits from which no token can be drawn.
  """
  if not prompts:
    return []
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  sampling = sampling or sampling_lib.Sampling(temperature=0)
  requests = [
    request_lib.Request(open_document(tokenizer, text), max_tokens, sampling)
    for text in prompts
  ]
  decoder = play.decoder(
    loaded,
    tokenizer,
    rows=len(requests),
    length=max(len(one.tokens) for one in requests) + max_tokens,
  )
  results = generator_lib.Generator(decoder, tokenizer, isolates=True).generate(
    requests
  )
  for result in results:
    if result.error is not None:
      raise result.error
  return [result.text for result in results]


def open_document(tokenizer: tokenizer_lib.Tokenizer, text: str) -> np.ndarray:
  """Returns int32 [L], BOS and the tokens of a text that opens a document."""
  return np.concatenate([[tokenizer.bos_id], tokenizer.encode(text)])
