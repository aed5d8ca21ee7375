"""Asks a generator for questions about passages, and for their answers.

Each of four passes is a batch of requests over the same rows:

    question   drawn, from the passage to the marker of the answer
    answer     drawn, up to the form's end
    again      the same question answered greedily
    scores     log p(answer | passage, question) and log p(answer | question)

A variation's noise depends on (seed, name of the passage, its number) alone,
not on the other requests nor on where a synthesis was interrupted.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple
import zlib

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.synthesis import form as form_lib
from kaiju_jax.synthesis import settings as settings_lib

_GREEDY = sampling_lib.Sampling(temperature=0)


class Passage(NamedTuple):
  """A text to ask questions about; its name is unique."""

  name: str
  text: str


@dataclasses.dataclass(frozen=True)
class Variation:
  """A question about a passage, and the generator's answers."""

  number: int  # 0 … variations − 1.
  seed: int  # Seed of its noise.
  # Without the form's markers; '' if it did not come to its end.
  question: str = ''
  answer: str = ''  # The drawn answer; '' likewise.
  again: str = ''  # The greedy answer.
  # Log p(answer | passage, question) and log p(answer | question) in nats, the
  # form's end included; None without an answer.
  informed: float | None = None
  uninformed: float | None = None

  @property
  def gain(self) -> float | None:
    """Returns the nats of information on the answer in the passage."""
    if self.informed is None or self.uninformed is None:
      return None
    return self.informed - self.uninformed


class _Draft(NamedTuple):
  """An unfinished variation, and the tokens of its passage."""

  root_L: np.ndarray
  variation: Variation

  def change(self, **fields) -> '_Draft':
    return self._replace(
      variation=dataclasses.replace(self.variation, **fields)
    )


def seed_of(seed: int, name: str, number: int) -> int:
  """Returns a variation's seed, 0…2³² − 1."""
  return zlib.crc32(f'{seed}/{number}/{name}'.encode())


def length(
  settings: settings_lib.Settings,
  tokenizer: tokenizer_lib.Tokenizer,
  passage: str,
) -> int:
  """Returns the tokens that a cache row needs for a passage's variations."""
  form = settings.form
  around = tokenizer.encode(form.format_question('') + form.format_answer(''))
  # A text that is decoded and encoded again may have more tokens than before.
  drawn = 2 * (settings.question_tokens + settings.answer_tokens)
  return 1 + len(tokenizer.encode(form.root(passage))) + len(around) + drawn


def record(
  form: form_lib.Form,
  passage: Passage,
  kept: Sequence[Variation],
) -> dict[str, Any]:
  """Returns a passage and its variations as one tree, for `data/documents.py`.

  The passage is the root, each variation a child of it. Variations see the
  passage and not each other, and a row holds the passage's tokens once, which
  takes P + Σ Q tokens where separate documents would take nP + Σ Q. The header
  is not part of its text.
  """
  children = [
    {
      'text': form.variation(one.question, one.answer),
      'parent': 0,
      'seed': one.seed,
      'number': one.number,
      'informed': one.informed,
      'uninformed': one.uninformed,
    }
    for one in kept
  ]
  root = {'text': passage.text, 'parent': -1}
  return {'passage': passage.name, 'segments': [root, *children]}


class Author:
  """Draws variations.

  Args:
    generator: the model; its rows must have at least `length` tokens.
    tokenizer: the generator's.
    settings: how many variations are drawn, and how.
  """

  def __init__(
    self,
    generator: generator_lib.Generator,
    tokenizer: tokenizer_lib.Tokenizer,
    settings: settings_lib.Settings,
  ):
    self._generator = generator
    self._tokenizer = tokenizer
    self._settings = settings
    self._form = settings.form

  def write(self, passages: Sequence[Passage]) -> list[list[Variation]]:
    """Returns `settings.variations` variations per passage, none filtered.

    Raises:
      request.BadLogits: the model gave logits that are not numbers.
      ValueError: a passage that does not fit into its row of the cache.
    """
    count = self._settings.variations
    blank = [
      [
        Variation(number, seed_of(self._settings.seed, passage.name, number))
        for number in range(count)
      ]
      for passage in passages
    ]
    steps = self._ask, self._answer, self._answer_again, self._score
    return self._run(steps, passages, blank)

  def weigh(
    self,
    passages: Sequence[Passage],
    variations: Sequence[Sequence[Variation]],
  ) -> list[list[Variation]]:
    """Returns each passage's variations with new `again` and scores.

    Their questions and answers may come from anywhere. Raises as `write`.
    """
    return self._run((self._answer_again, self._score), passages, variations)

  def _run(self, steps, passages, variations) -> list[list[Variation]]:
    """Applies steps to the drafts of all passages' variations at once."""
    drafts = [
      _Draft(self._opened(self._form.root(passage.text)), one)
      for passage, own in zip(passages, variations, strict=True)
      for one in own
    ]
    for step in steps:
      drafts = step(drafts)
    found = iter(draft.variation for draft in drafts)
    return [[next(found) for _ in own] for own in variations]

  def _ask(self, drafts: Sequence[_Draft]) -> list[_Draft]:
    """Draws the questions."""
    marker_L = self._tokenizer.encode(self._form.question)
    texts = self._continued(
      [np.concatenate([draft.root_L, marker_L]) for draft in drafts],
      map(self._noise, drafts),
      self._settings.question_tokens,
      self._form.answer,
    )
    return [one.change(question=text) for one, text in zip(drafts, texts)]

  def _answer(self, drafts: Sequence[_Draft]) -> list[_Draft]:
    """Draws the answers of drafts that have a question."""
    return self._reply(drafts, 'question', 'answer', self._noise)

  def _answer_again(self, drafts: Sequence[_Draft]) -> list[_Draft]:
    """Draws greedy answers for drafts that have an answer."""
    return self._reply(drafts, 'answer', 'again', lambda _: _GREEDY)

  def _reply(self, drafts, needed: str, field: str, sampling) -> list[_Draft]:
    """Sets `field` to answers; to '' where the field `needed` is empty."""
    asked = [one for one in drafts if getattr(one.variation, needed)]
    texts = iter(
      self._continued(
        map(self._question_L, asked),
        map(sampling, asked),
        self._settings.answer_tokens,
        self._form.end,
      )
    )
    return [
      one.change(
        **{field: next(texts) if getattr(one.variation, needed) else ''}
      )
      for one in drafts
    ]

  def _score(self, drafts: Sequence[_Draft]) -> list[_Draft]:
    """Scores the answers with and without their passages."""
    found = [draft for draft in drafts if draft.variation.answer]
    answers = [
      self._tokenizer.encode(self._form.format_answer(draft.variation.answer))
      for draft in found
    ]
    bare_L = self._opened(self._form.header)
    informed = self._scores(found, answers)
    uninformed = self._scores(
      [draft._replace(root_L=bare_L) for draft in found], answers
    )
    scores = zip(informed, uninformed)
    return [
      draft.change(**dict(zip(('informed', 'uninformed'), next(scores))))
      if draft.variation.answer
      else draft
      for draft in drafts
    ]

  def _scores(self, drafts, answers) -> list[float]:
    requests = [
      request_lib.Request(
        np.concatenate([self._question_L(draft), answer_L]),
        1,
        _GREEDY,
        scores_prompt=True,
      )
      for draft, answer_L in zip(drafts, answers)
    ]
    results = self._results(requests)
    return [
      float(one.prompt_log_probabilities[-len(answer_L) :].sum())
      for one, answer_L in zip(results, answers)
    ]

  def _continued(self, prompts, samplings, count: int, stop: str) -> list[str]:
    """Returns what follows each prompt; '' where `stop` did not come."""
    results = self._results(
      [
        request_lib.Request(prompt_L, count, sampling, stop_strings=(stop,))
        for prompt_L, sampling in zip(prompts, samplings)
      ]
    )
    return [
      one.text.strip() if one.reason == 'stop_string' else '' for one in results
    ]

  def _results(self, requests) -> list[request_lib.Result]:
    results = self._generator.generate(requests)
    for result in results:
      if result.error is not None:
        raise result.error
    return results

  def _question_L(self, draft: _Draft) -> np.ndarray:
    question = self._form.format_question(draft.variation.question)
    return np.concatenate([draft.root_L, self._tokenizer.encode(question)])

  def _opened(self, text: str) -> np.ndarray:
    tokens_L = self._tokenizer.encode(text)
    return np.concatenate([[self._tokenizer.bos_id], tokens_L]).astype(np.int32)

  def _noise(self, draft: _Draft) -> sampling_lib.Sampling:
    return sampling_lib.Sampling(
      temperature=self._settings.temperature,
      top_p=self._settings.top_p,
      seed=draft.variation.seed,
    )
