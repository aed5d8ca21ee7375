"""Evaluates a round's model on held-out prompts, against the first model.

kl        mean of log p(y) − log p_first(y) over one sampled reply y per prompt
accuracy  the share of the first model's groups of replies in which the kept one
          has the largest log p − log p_first
win       the share of prompts where its reply has the larger utility than the
          first model's, ties by half; feedback of people has no utility
"""

from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.alignment import guards
from kaiju_jax.alignment import prompts
from kaiju_jax.alignment import replies as replies_lib
from kaiju_jax.alignment import users
from kaiju_jax.data import chat
from kaiju_jax.data import conversations
from kaiju_jax.data import turns
from kaiju_jax.model import deployed
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import load
from kaiju_jax.runs import reference as reference_lib


class HeldOut(NamedTuple):
  """A held-out prompt, with replies of the first model."""

  prompt: prompts.Prompt  # The prompt.
  # The first model's; one, or those of `group`.
  replies: tuple[replies_lib.SampledReply, ...]
  # The texts from which the user chose; () without a choice.
  group: tuple[str, ...] = ()
  # The index in `group` of the reply that the user kept; None for none.
  kept: int | None = None


def to_json(held: HeldOut) -> dict[str, Any]:
  """Returns a held-out prompt as JSON holds it."""
  return {
    'prompt': held.prompt.name,
    'replies': [replies_lib.to_json(one) for one in held.replies],
    'group': list(held.group),
    'kept': held.kept,
  }


def parse(record: Any) -> tuple[Any, tuple[str, ...], int | None]:
  """Returns the fields of a `HeldOut` but its prompt."""
  replies = tuple(map(replies_lib.parse, record['replies']))
  return replies, tuple(record['group']), record['kept']


@dataclasses.dataclass(frozen=True)
class Wins:
  """How often one model's replies have the larger utility than another's."""

  wins: int
  ties: int
  losses: int

  def describe(self) -> dict[str, Any]:
    """Returns counts, and rates with Wilson's intervals.

    These are the rate with ties by half, and 'untied', that among pairs that
    are no ties, None without any.
    """
    total = self.wins + self.ties + self.losses
    right = self.wins + self.ties / 2
    apart = self.wins + self.losses
    found = {**dataclasses.asdict(self), **_rate(right, total)}
    found['untied'] = _rate(self.wins, apart) if apart else None
    return found


def _rate(right: float, total: int) -> dict[str, float]:
  low, high = statistics.wilson(right, total)
  return {'value': right / total, 'low': low, 'high': high}


def count_wins(
  user: users.Planted | users.Head,
  held_out: Sequence[HeldOut],
  replies: Sequence[replies_lib.SampledReply],
) -> Wins:
  """Compares one reply to each prompt with the first model's first reply.

  A reply that was cut off or is blank loses to any other.

  Args:
    user: whose utility decides.
    held_out: the prompts.
    replies: a model's reply to each.
  """
  firsts = [one.replies[0] for one in held_out]
  asked = [one.prompt for one in held_out]
  for sampled in replies, firsts:
    texts = (one.content for one in sampled)
    user.prefetch(zip(asked, texts, strict=True))
  counts = {-1: 0, 0: 0, 1: 0}
  for one, ours, theirs in zip(held_out, replies, firsts, strict=True):
    mine, yours = (
      (x.is_usable, x.is_usable and user.judge(one.prompt, x.content))
      for x in (ours, theirs)
    )
    counts[(mine > yours) - (mine < yours)] += 1
  return Wins(counts[1], counts[0], counts[-1])


class Evaluator:
  """Evaluates models on held-out prompts."""

  def __init__(
    self,
    first: load.Loaded,
    reader: reference_lib.Reader,
    format: chat.Format,
    held_out: Sequence[HeldOut],
  ):
    """Compiles nothing.

    Args:
      first: the reference, an export's codes.
      reader: computes log-probabilities of replies.
      format: the models' chat format.
      held_out: the prompts.
    """
    self._first = first
    self._reader = reader
    self._format = format
    self._held_out = held_out

  def evaluate(
    self, loaded: load.Loaded, replies: Sequence[replies_lib.SampledReply]
  ) -> tuple[guards.Readings, dict[str, Any]]:
    """Returns what the guards read, and further figures for the record.

    Args:
      loaded: the round's model.
      replies: its reply to each prompt.
    """
    params = loaded.params
    if not deployed.is_deployed(params):
      params = deployed.quantize(params, loaded.config, loaded.replica)
    coded = loaded._replace(params=params, replica=None)
    groups = [
      list(dict.fromkeys((*one.group, *_usable([reply]))))
      for one, reply in zip(self._held_out, replies, strict=True)
    ]
    log_p = self._score(coded, groups)
    before = self._score(self._first, groups)
    kl, right, kept = [], [], []
    for one, reply, ours, theirs in zip(
      self._held_out, replies, log_p, before, strict=True
    ):
      if not ours:
        continue
      if reply.is_usable:
        kl.append(ours[reply.content] - theirs[reply.content])
      if one.kept is not None:
        ratio = [ours[text] - theirs[text] for text in one.group]
        best = max(x for i, x in enumerate(ratio) if i != one.kept)
        right.append(ratio[one.kept] > best)
        kept.append(ours[one.group[one.kept]])
    first = [reply.tokens for one in self._held_out for reply in one.replies]
    tokens = [one.tokens for one in replies]
    readings = guards.Readings(
      kl=_mean(kl),
      length=float(np.mean(tokens) / np.mean(first)),
      right=sum(right),
      choices=len(right),
      cut=sum(one.finish == 'length' for one in replies),
      replies=len(replies),
    )
    return readings, {
      'accuracy': readings.accuracy,
      'kl_replies': len(kl),
      'kept_log_p': _mean(kept),
      'tokens': float(np.mean(tokens)),
      'distinct_3': _share_of_distinct(replies),
      'codes_moved': _share_of_moved_codes(params, self._first.params),
    }

  def _score(
    self, loaded: load.Loaded, groups: Sequence[Sequence[str]]
  ) -> list[dict[str, float]]:
    """Returns {text: log p} of each prompt's texts; {} for fewer than two."""
    said = []
    for number, (one, texts) in enumerate(zip(self._held_out, groups)):
      if len(texts) < 2:
        continue  # One reply gives no preference pair: skip it.
      # A tree's format: the kept reply is the last one.
      replies = tuple(
        conversations.Candidate(text, text == texts[-1]) for text in texts
      )
      messages = [
        conversations.WeightedMessage(*x) for x in one.prompt.messages
      ]
      last = conversations.WeightedMessage('assistant', texts[-1], 1.0, replies)
      said.append(conversations.Conversation(str(number), (*messages, last)))
    found = [{} for _ in groups]
    if said:
      corpus, choices, _ = turns.choices(said, self._format)
      values = self._reader.read(loaded, corpus, choices)
      for one, log_p in zip(said, values, strict=True):
        texts = groups[int(one.name)]
        found[int(one.name)] = dict(zip(texts, log_p.tolist(), strict=True))
    return found


def _usable(replies: Sequence[replies_lib.SampledReply]) -> list[str]:
  return [one.content for one in replies if one.is_usable]


def _mean(values: Sequence[float]) -> float | None:
  return float(np.mean(values)) if values else None


def _share_of_distinct(
  replies: Sequence[replies_lib.SampledReply],
) -> float | None:
  """Returns distinct word trigrams over all trigrams; None without any."""
  triples = []
  for one in replies:
    words = one.content.split()
    triples += zip(words, words[1:], words[2:])
  return len(set(triples)) / len(triples) if triples else None


def _share_of_moved_codes(ours: Any, theirs: Any) -> float | None:
  """Returns the share of int8 codes that differ; None without codes."""
  first = dict(jax.tree_util.tree_leaves_with_path(theirs))
  pairs = [
    (np.asarray(one), np.asarray(first[path]))
    for path, one in jax.tree_util.tree_leaves_with_path(ours)
    if one.dtype == np.int8
  ]
  if not pairs:
    return None
  differ = sum(int((one != other).sum()) for one, other in pairs)
  return differ / sum(one.size for one, _ in pairs)
