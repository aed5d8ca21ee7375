"""Evaluates a round's model on held-out prompts, against the first model.

kl        mean of log p(y) − log p_first(y) over one sampled reply y per prompt
accuracy  in how many groups of the first model's replies the one that the user
          keeps has the largest log p − log p_first
win       the share of prompts to which its reply has a larger utility than the
          first model's, ties by half; recorded feedback has no utility
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
from kaiju_jax.data import turns
from kaiju_jax.model import deployed
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import load
from kaiju_jax.runs import reference as reference_lib


class HeldOut(NamedTuple):
  """A held-out prompt, with replies of the first model."""

  prompt: prompts.Prompt
  # One, or as many as a round samples.
  replies: tuple[replies_lib.SampledReply, ...]
  # The texts from which the user chose; () without a choice.
  group: tuple[str, ...] = ()
  # The index in `group` of the reply that the user kept; None for none.
  kept: int | None = None


def to_json(held: HeldOut) -> dict[str, Any]:
  """Returns a held-out prompt as JSON holds it."""
  return {
    'prompt': held.prompt.name,
    'replies': [one._asdict() for one in held.replies],
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
    """Returns counts, the rate with ties by half, and 'untied', without them.

    Both have Wilson's interval; 'untied' is None if all pairs are ties.
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
  user: users.User,
  held_out: Sequence[HeldOut],
  replies: Sequence[replies_lib.SampledReply],
) -> Wins:
  """Compares one reply to each prompt with the first model's first reply.

  The larger utility of `user` wins; a reply that was cut off or is blank loses
  to any other.
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
      first: the reference model; its weights are int8 codes.
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

    `replies` are the model's own, one to each prompt.
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
    # One reply gives no preference pair: it is skipped.
    scored = [n for n, texts in enumerate(groups) if len(texts) > 1]
    trees = [self._held_out[n].prompt.with_replies(groups[n]) for n in scored]
    found = [{} for _ in groups]
    if trees:
      corpus, _ = turns.choices(trees, self._format)
      values = self._reader.read(loaded, corpus)
      for n, log_p in zip(scored, values, strict=True):
        found[n] = dict(zip(groups[n], log_p.tolist(), strict=True))
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
