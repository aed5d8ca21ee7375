"""Counts replies that loop, by how they are drawn.

The first ten characters of the golden conversations answer their eight messages
and two more, each seed anew. A reply loops where eight words in a row stand in
it three times.
"""

import collections
from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.evaluation.persona import dialogue
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.gates import settings as gate_settings
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import defaults as defaults_lib

_CHARACTERS = 10
_MORE = 'Tell me a story.', 'What shall we do tomorrow?'
_LENGTH, _REPLY = 8192, 512  # Tokens of a row, and a server's of a reply.
_WORDS, _TIMES = 8, 3
_COLUMNS = (
  *('drawn', 'replies', 'loop or at the limit', 'loop', 'at the limit'),
  *('said before', 'words', 'distinct-1', 'distinct-3', 'perplexity'),
)


class _Recorder:
  """A generator that draws in one way, and keeps the results."""

  def __init__(self, generator: generator_lib.Generator, way: dict[str, Any]):
    self._generator, self._way = generator, way
    self.results: list[request_lib.Result] = []

  def generate(self, requests: Sequence[request_lib.Request]):
    """Returns the requests' results, whatever way and limit they name."""
    drawn = [
      dataclasses.replace(
        one,
        max_tokens=_REPLY,
        sampling=sampling_lib.Sampling(**self._way, seed=one.sampling.seed),
      )
      for one in requests
    ]
    results = self._generator.generate(drawn)
    self.results += results
    return results

  def forget(self) -> None:
    self._generator.forget()


def count(settings: settings_lib.ChatFacts) -> None:
  """Lets a model talk, each way to draw by itself, and prints a table.

  Raises:
    OSError, ValueError: the model or a way to draw cannot be read.
  """
  ways = {said: parse(said) for said in settings.loops}
  played = settings.player
  loaded = played.load(settings.model)
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  found = defaults_lib.read(loaded, tokenizer)
  length = played.length or min(_LENGTH, loaded.config.max_length)
  played = dataclasses.replace(played, length=length)
  decoder = played.decoder(loaded, tokenizer, _CHARACTERS)
  generator = generator_lib.Generator(decoder, tokenizer)
  more = tuple(golden.GoldenTurn(one, '') for one in _MORE)
  conversations = [
    dataclasses.replace(one, turns=one.turns + more)
    for one in golden.load(gate_settings.GOLDEN)[:_CHARACTERS]
  ]
  rows = []
  for said, way in ways.items():
    replies = []
    for seed in range(settings.repeats):
      drawn = _Recorder(generator, way or found.chat_sampling)
      model = responders.Model(drawn, found.format, seed=seed)
      dialogue.play(model, conversations)
      replies += [drawn.results[n::_CHARACTERS] for n in range(_CHARACTERS)]
    rows.append(score(said or 'by default', replies))
    report.Report().table(rows[-1:], _COLUMNS).show(as_markdown=True)
    for own in replies[: settings.show]:
      print(*(f'> {one.text}' for one in own), sep='\n')
  report.Report().table(rows, _COLUMNS).show(as_markdown=True)


def parse(said: str) -> dict[str, Any]:
  """Returns fields of `Sampling` from NAME=VALUE,…; '' for none.

  Raises:
    ValueError: names the word that is wrong.
  """
  kinds = {
    one.name: type(one.default)
    for one in dataclasses.fields(sampling_lib.Sampling)
  }
  way = {}
  for word in filter(None, said.split(',')):
    name, _, value = word.partition('=')
    try:
      way[name] = kinds[name](value)
      sampling_lib.Sampling(**way)
    except (KeyError, TypeError, ValueError) as error:
      raise ValueError(f'--loops={said}: {word}: {error}') from error
  return way


def score(said: str, conversations: Sequence[Sequence[request_lib.Result]]):
  """Returns a row of the table, of each conversation's replies."""
  replies = [one for own in conversations for one in own]
  loop = np.array([has_loop(one.text) for one in replies])
  limit = np.array([one.reason == 'length' for one in replies])
  scores = np.concatenate([one.log_probabilities for one in replies])
  distinct = [
    statistics.mean([_distinct(own, count) for own in conversations])
    for count in (1, 3)
  ]
  return (
    said,
    len(replies),
    statistics.Share(int((loop | limit).sum()), len(replies)),
    int(loop.sum()),
    int(limit.sum()),
    sum(map(_repeats, conversations)),
    f'{statistics.mean([len(one.text.split()) for one in replies]):.0f}',
    *(f'{one:.2f}' for one in distinct),
    f'{math.exp(-scores.mean()):.1f}',
  )


def has_loop(text: str) -> bool:
  """Returns whether eight words in a row stand in a text three times."""
  counts = collections.Counter(_ngrams(text, _WORDS))
  return max(counts.values(), default=0) >= _TIMES


def _ngrams(text: str, count: int) -> list[tuple[str, ...]]:
  words = text.lower().split()
  return [*zip(*(words[first:] for first in range(count)))]


def _repeats(replies: Sequence[request_lib.Result]) -> int:
  """Returns how many replies share eight words in a row with an earlier one."""
  found, said = 0, set()
  for one in replies:
    own = set(_ngrams(one.text, _WORDS))
    found += not said.isdisjoint(own)
    said |= own
  return found


def _distinct(replies: Sequence[request_lib.Result], count: int) -> float:
  """Returns the part of a conversation's n-grams of words that differ."""
  said = [one for reply in replies for one in _ngrams(reply.text, count)]
  return len(set(said)) / max(1, len(said))
