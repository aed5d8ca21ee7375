"""Both stages of safety together, for a server: verdicts, failures, versions.

A folder holds a version of the gate and of the thresholds of both stages:

    gate.safetensors   the classifier before the model (`gate.py`)
    thresholds.json    both stages' thresholds, certified (`thresholds.py`)
    head.safetensors   the token head (`model/token_head.py`), if it lies here

The engine runs the token head; the thresholds name the version that they are
for (`head_version`). A request goes this way:

    watch = moderator.watch(age, owner)       one version from here to the end
    verdict = watch.read(text)                the user's text, before the model
    verdict = watch.prompt(scores)            the head's scores of the prompt
    release = watch.release()                 the reply, token by token

A blocked request is answered with a refusal and finish_reason 'content_filter'.

When something fails (our guess): without a token head nothing is served, nor
without its thresholds. Where the gate raises an error, minors are refused, and
adults served, because the token head still reads the prompt and the reply.
Without any version the server is *unmoderated*: it may only serve loopback.

No asyncio here. `read` takes a millisecond or two of a core; all the rest
microseconds, but for a blocked text's line in the log.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import logging
import os
import pathlib
import threading
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.serving.safety import blocked as blocked_lib
from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import release as release_lib
from kaiju_jax.serving.safety import thresholds

GATE, THRESHOLDS = 'gate.safetensors', 'thresholds.json'
HEAD = 'head.safetensors'


class Head(NamedTuple):
  """The token head that the engine runs.

  Attributes:
    version: see `head_version`.
    names: its dimensions, in the order of its scores.
  """

  version: str
  names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Version:
  """A gate and the thresholds of both stages; never changed.

  Attributes:
    folder: where it was read.
    gate: the classifier before the model.
    policy: the thresholds.
  """

  folder: str
  gate: gate_lib.Gate
  policy: thresholds.Policy


class Verdict(NamedTuple):
  """What a stage says of a text.

  Attributes:
    is_blocked: whether the request is refused.
    stage: 'gate'; 'prompt', the token head on the prompt; 'closed', where
      nothing is served; 'open' where there is no moderation.
    tier: 'adult' or 'minor'.
    dimension: what is violated; '' where it passes, or a stage failed.
    score: how much; None where there is none.
    version: the classifier's.
    has_failed: whether the stage could not judge.
  """

  is_blocked: bool
  stage: str
  tier: str
  dimension: str = ''
  score: float | None = None
  version: str = ''
  has_failed: bool = False


class Moderator:
  """Holds the version that is served, and the one before.

  Threads may share it: a request sees one version from `watch` to its end, and
  requests that run while the version changes end with the one they began with.
  """

  def __init__(
    self,
    head: Head | None = None,
    blocked: blocked_lib.Blocked | None = None,
  ):
    """Starts unmoderated.

    Args:
      head: the token head that the engine runs; None for none.
      blocked: where blocked texts go; None for nowhere.
    """
    self._head = head
    self._blocked = blocked
    self._lock = threading.Lock()
    # (current, before) in one attribute, so that readers need no lock.
    self._versions: tuple[Version | None, Version | None] = None, None

  @property
  def version(self) -> Version | None:
    """What is served; None for nothing."""
    return self._versions[0]

  @property
  def mode(self) -> str:
    """'unmoderated', 'moderated', or 'closed' where nothing is served."""
    return _mode(self.version, self._head)

  def use(self, folder: str | os.PathLike) -> Version:
    """Serves another version from now on, and keeps the one before.

    Raises:
      OSError: a file is missing or cannot be read.
      ValueError: a file is bad, or the thresholds are for another gate or
        another token head. The version that is served stays.
    """
    version = self.load(folder)
    with self._lock:
      self._versions = version, self._versions[0]
    return version

  def rollback(self) -> Version:
    """Serves the version before again; once more, and the later one is back.

    Raises:
      RuntimeError: there is none. Moderation is not taken off this way.
    """
    with self._lock:
      current, before = self._versions
      if before is None:
        raise RuntimeError('there is no version before the one that is served.')
      self._versions = before, current
    return before

  def load(self, folder: str | os.PathLike) -> Version:
    """Returns a folder's version, without serving it; raises as `use`."""
    folder = pathlib.Path(folder)
    gate = gate_lib.load(folder / GATE)
    policy = thresholds.load(folder / THRESHOLDS)
    try:
      thresholds.check_classifier(policy.gate, 'gate', gate.version, gate.names)
      if policy.head and self._head:
        thresholds.check_classifier(policy.head, 'head', *self._head)
    except ValueError as error:
      raise ValueError(f'{folder / THRESHOLDS}: {error}') from error
    return Version(str(folder), gate, policy)

  def replay(self, folder: str | os.PathLike) -> blocked_lib.Replay:
    """Returns what a folder's version says of the texts that were blocked.

    Raises:
      OSError, ValueError: see `use`.
      RuntimeError: this moderator has no log.
    """
    if self._blocked is None:
      raise RuntimeError('there is no log of blocked texts to replay.')
    version = self.load(folder)
    return self._blocked.replay(version.gate, version.policy)

  def watch(self, age: object, owner: str = '') -> 'Watch':
    """Returns what judges one request, by the version that is served now.

    Args:
      age: 'adult', if the request's token says so; all others are minors'.
      owner: who asks; the log holds its HMAC.
    """
    tier = thresholds.tier_of(age)
    return Watch(self.version, self._head, self._blocked, tier, owner)


class Watch:
  """Judges one request; see the module.

  Attributes:
    tier: 'adult' or 'minor'.
    mode: see `Moderator.mode`.
  """

  def __init__(
    self,
    version: Version | None,
    head: Head | None,
    blocked: blocked_lib.Blocked | None,
    tier: str,
    owner: str,
  ):
    self.tier = tier
    self.mode = _mode(version, head)
    self._version = version
    self._blocked = blocked
    self._owner = owner

  def read(self, text: str) -> Verdict:
    """Returns the gate's verdict on a text, all of which it reads."""
    if self.mode != 'moderated':
      return self._without(text)
    stage = self._version.policy.gate
    verdict = Verdict(False, 'gate', self.tier, version=stage.version)
    try:
      gate = self._version.gate
      for part in gate.parts(text):
        verdict = self._judged(verdict, stage, gate.score(part))
        if verdict.is_blocked:
          break
    except Exception as error:
      # Any error at all, because one that passed would open a way around. Its
      # message may quote the text.
      logging.error('The gate failed with %s.', type(error).__name__)
      is_minor = self.tier != 'adult'
      verdict = verdict._replace(is_blocked=is_minor, has_failed=True)
      part = ''
    # The log keeps the end of a text: of a long one, what is blocked.
    is_long = len(text) > blocked_lib.LONGEST
    return self._logged(verdict, part if is_long else text)

  def prompt(self, scores: Sequence[float] | None, text: str = '') -> Verdict:
    """Returns the token head's verdict on a prompt.

    Args:
      scores: per dimension the highest of its tokens; None blocks.
      text: what the user wrote, for the log.
    """
    if self.mode != 'moderated':
      return self._without(text)
    stage = self._version.policy.head
    verdict = Verdict(False, 'prompt', self.tier, version=stage.version)
    if scores is None:
      verdict = verdict._replace(is_blocked=True, has_failed=True)
    else:
      verdict = self._judged(verdict, stage, scores)
    return self._logged(verdict, text)

  def release(self) -> release_lib.Release:
    """Returns the way out of one reply; it logs what it stops.

    Raises:
      RuntimeError: nothing is served.
    """
    if self.mode == 'unmoderated':
      return release_lib.Release(None)
    if self.mode == 'closed':
      raise RuntimeError('no reply is served without a token head.')
    policy = self._version.policy
    return release_lib.Release(
      bounds(policy.head.for_tier(self.tier)), policy.hold, self._stopped
    )

  def _judged(
    self, verdict: Verdict, stage: thresholds.Stage, scores: Sequence[float]
  ) -> Verdict:
    """Returns a verdict with what a stage's thresholds say of scores."""
    found = thresholds.find_reached(stage.for_tier(self.tier).limits, scores)
    if not found:
      return verdict
    dimension, score = found
    return verdict._replace(is_blocked=True, dimension=dimension, score=score)

  def _stopped(self, release: release_lib.Release) -> None:
    violation = release.violation
    verdict = Verdict(
      is_blocked=True,
      stage='head',
      tier=self.tier,
      dimension=violation.dimension,
      score=violation.score,
      version=self._version.policy.head.version,
    )
    self._logged(verdict, release.text)

  def _without(self, text: str) -> Verdict:
    """Returns the verdict of a server that has no moderation, or no head."""
    if self.mode == 'unmoderated':
      return Verdict(False, 'open', self.tier)
    return Verdict(True, 'closed', self.tier, has_failed=True)

  def _logged(self, verdict: Verdict, text: str) -> Verdict:
    if verdict.is_blocked and self._blocked is not None:
      try:
        self._blocked.add(
          verdict.stage,
          verdict.tier,
          verdict.dimension,
          verdict.score,
          verdict.version,
          self._owner,
          text,
        )
      except OSError as error:
        # The text stays blocked; a full disk changes no verdict.
        logging.error('A blocked text was not logged: %s', error.strerror)
    return verdict


def bounds(tier: thresholds.Tier) -> list[release_lib.Bound]:
  """Returns the hold-back's bounds by a token head's thresholds."""
  return [
    release_lib.Bound(limit.name, limit.low, limit.high)
    for limit in tier.limits
  ]


def head_version(params: Mapping[str, Any], names: Sequence[str]) -> str:
  """Returns the version of a token head: SHA-256 of weights and dimensions.

  Args:
    params: its arrays by name, as `token_head.load` returns them.
    names: its dimensions.
  """
  tensors = {name: np.asarray(x, np.float32) for name, x in params.items()}
  return gate_lib.content(tensors, json.dumps(list(names)))


def _mode(version: Version | None, head: Head | None) -> str:
  if version is None:
    return 'unmoderated'
  return 'moderated' if head and version.policy.head else 'closed'
