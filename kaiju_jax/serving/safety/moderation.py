"""Moderation: judges a request by both safety stages, with one version of each.

A folder holds a version of the gate and of the thresholds of both stages:

    gate.safetensors   the classifier before the model (`gate.py`)
    thresholds.json    both stages' thresholds, certified (`thresholds.py`)
    head.safetensors   the token-level head (`model/token_head.py`), optional

The engine runs the token-level head; the thresholds name the version of the
head that they were certified with (`head_version`). A request passes these
calls:

    watch = moderator.watch(age, owner)       one version from here to the end
    verdict = watch.read(text)                the user's text, before the model
    verdict = watch.prompt(scores)            the head's scores of the prompt
    release = watch.release()                 the reply, token by token

A blocked request is answered with a refusal and finish_reason 'content_filter'.

When something fails (our guess): without a token-level head, or without its
thresholds, nothing is served. If the gate raises an error, minors are refused
and adults are served, because the head still reads the prompt and the reply.
Without any version the server is *unmoderated*: it may only serve loopback.

Nothing here is asynchronous. `read` takes a millisecond or two of a core per
part of a text; the other calls take microseconds, unless they log a text.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
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
from kaiju_jax.storage import strict

GATE, THRESHOLDS = 'gate.safetensors', 'thresholds.json'
HEAD = 'head.safetensors'


class Head(NamedTuple):
  """The token-level head that the engine runs."""

  version: str  # Its version, from `head_version`.
  names: tuple[str, ...]  # Its dimensions, in the order of its scores.


@dataclasses.dataclass(frozen=True)
class Version:
  """A gate with the thresholds of both stages."""

  folder: str  # The folder that holds both.
  gate: gate_lib.Gate  # The classifier before the model.
  policy: thresholds.Policy

  @functools.cached_property
  def id(self) -> str:
    """Hex that names the gate and the thresholds together."""
    policy = json.dumps(strict.dump(self.policy), sort_keys=True)
    whole = f'{self.gate.version}\n{policy}'
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


class Verdict(NamedTuple):
  """A stage's judgement of a text."""

  is_blocked: bool  # Whether the request is refused.
  # 'gate'; 'prompt', the token-level head on the prompt; 'head', the same on
  # the reply; 'closed', where nothing is served; 'open', where there is no
  # moderation.
  stage: str
  tier: str  # 'adult' or 'minor'.
  # The violated dimension; '' where the text passes, or the stage failed.
  dimension: str = ''
  score: float | None = None  # Its score; None where there is none.
  version: str = ''  # The classifier's version.
  has_failed: bool = False  # Whether the stage could not judge.


class Moderator:
  """The holder of the version that is served and of the one before it.

  Threads may share it. A request keeps the version that `watch` gave it, even
  if another version is served before the request ends.
  """

  def __init__(
    self,
    head: Head | None = None,
    blocked: blocked_lib.Blocked | None = None,
  ):
    """Starts without a version: unmoderated.

    Args:
      head: the token-level head that the engine runs; None for none.
      blocked: the log of blocked texts; None for no log.
    """
    self._head = head
    self._blocked = blocked
    self._lock = threading.Lock()
    # (current, previous) in one attribute, so that readers need no lock.
    self._versions: tuple[Version | None, Version | None] = None, None

  @property
  def version(self) -> Version | None:
    """The version that is served; None where the server is unmoderated."""
    return self._versions[0]

  @property
  def before(self) -> Version | None:
    """The version that `rollback` would serve; None where there is none."""
    return self._versions[1]

  @property
  def mode(self) -> str:
    """The server's state: 'unmoderated', 'moderated', or 'closed'.

    It is 'closed', and nothing is served, while the head or its thresholds are
    missing.
    """
    return _mode(self.version, self._head)

  def use(
    self, folder: str | os.PathLike[str], may_close: bool = True
  ) -> Version:
    """Serves a folder's version from now on, and keeps the one before it.

    The version that is served already changes nothing: `rollback` still finds
    the one before it.

    Args:
      may_close: whether to serve a version with which nothing is answered,
        because the head or its thresholds are missing.

    Raises:
      OSError: a file is missing or cannot be read.
      ValueError: a file is bad, the thresholds are for another gate or another
        token-level head, or nothing would be answered. After either error,
        nothing has changed.
    """
    version = self.load(folder)
    if not may_close and _mode(version, self._head) == 'closed':
      missing = 'the server runs no token-level head'
      if self._head:
        missing = f'{THRESHOLDS} has no thresholds of the token-level head'
      raise ValueError(f'{folder}: nothing would be answered: {missing}.')
    with self._lock:
      before = self._versions[0]
      if before is None or version.id != before.id:
        self._versions = version, before
      return self._versions[0]

  def rollback(self, served: str | None = None) -> Version:
    """Swaps the served version and the previous one.

    Args:
      served: the `id` that the caller takes to be served; None for any. It
        keeps two operators from undoing each other's rollback.

    Raises:
      RuntimeError: there is no previous version, so that a rollback never ends
        moderation; or another version is served.
    """
    with self._lock:
      current, before = self._versions
      if served is not None and (current is None or current.id != served):
        now = 'none' if current is None else current.id
        raise RuntimeError(f'served={served!r}: the version served is {now}.')
      if before is None:
        raise RuntimeError('there is no version before the one that is served.')
      self._versions = before, current
    return before

  def load(self, folder: str | os.PathLike[str]) -> Version:
    """Returns a folder's version without serving it; raises as `use` does."""
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

  def watch(self, age: object, owner: str = '') -> 'Watch':
    """Returns the judge of one request, with the version that is served now.

    Args:
      age: the age that the request's API token claims; only 'adult' is one.
      owner: the API token's user; the log holds only an HMAC of the name.
    """
    tier = tier_of(age)
    return Watch(self.version, self._head, self._blocked, tier, owner)


class Watch:
  """The judge of one request, which logs the texts that it blocks."""

  def __init__(
    self,
    version: Version | None,
    head: Head | None,
    blocked: blocked_lib.Blocked | None,
    tier: str,
    owner: str,
  ):
    self.tier = tier  # The age tier, 'adult' or 'minor'.
    # `Moderator.mode` at the request's beginning.
    self.mode: str = _mode(version, head)
    self.version = version  # `Moderator.version` at the request's beginning.
    self._blocked = blocked
    self._owner = owner

  def read(self, text: str) -> Verdict:
    """Returns the gate's verdict on a text, which it reads in parts.

    It stops at the first part that is blocked.
    """
    if self.mode != 'moderated':
      return self._without(text)
    stage = self.version.policy.gate
    verdict = Verdict(False, 'gate', self.tier, version=stage.version)
    try:
      gate = self.version.gate
      for part in gate.parts(text):
        verdict = self._judged(verdict, stage, gate.score(part))
        if verdict.is_blocked:
          break
    except Exception as error:
      # Every error, because any that passes through would be a way around the
      # gate. The message is not logged: it may quote the text.
      logging.error('The gate failed with %s.', type(error).__name__)
      is_minor = self.tier != 'adult'
      verdict = verdict._replace(is_blocked=is_minor, has_failed=True)
      part = ''
    # The log keeps only a text's end, so it gets a long text's blocked part.
    is_long = len(text) > blocked_lib.LONGEST
    return self._logged(verdict, part if is_long else text)

  def prompt(self, scores: Sequence[float] | None, text: str = '') -> Verdict:
    """Returns the token-level head's verdict on a prompt.

    Args:
      scores: per dimension, the highest score of the prompt's tokens. None, for
        scores that are missing, blocks.
      text: the user's text, for the log.
    """
    if self.mode != 'moderated':
      return self._without(text)
    stage = self.version.policy.head
    verdict = Verdict(False, 'prompt', self.tier, version=stage.version)
    if scores is None:
      verdict = verdict._replace(is_blocked=True, has_failed=True)
    else:
      verdict = self._judged(verdict, stage, scores)
    return self._logged(verdict, text)

  def release(self) -> release_lib.Release:
    """Returns the hold-back of one reply; it logs the reply if it stops it.

    Raises:
      RuntimeError: the mode is 'closed'.
    """
    if self.mode == 'unmoderated':
      return release_lib.Release(None)
    if self.mode == 'closed':
      raise RuntimeError('no reply is served without a token head.')
    policy = self.version.policy
    return release_lib.Release(
      bounds(policy.head.for_tier(self.tier)), policy.hold, self._stopped
    )

  def _judged(
    self, verdict: Verdict, stage: thresholds.Stage, scores: Sequence[float]
  ) -> Verdict:
    """Returns a verdict, blocked if a score reaches a stage's threshold."""
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
      version=self.version.policy.head.version,
    )
    self._logged(verdict, release.text)

  def _without(self, text: str) -> Verdict:
    """Returns the verdict of a server that is unmoderated or closed."""
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


def tier_of(age: object) -> str:
  """Returns the tier, 'adult' or 'minor', for the age that a token claims.

  Every value other than 'adult', such as None, gives 'minor'.
  """
  return 'adult' if age == 'adult' else 'minor'


def bounds(tier: thresholds.Tier) -> list[release_lib.Bound]:
  """Returns the hold-back's bounds from a token-level head's thresholds."""
  return [
    release_lib.Bound(limit.name, limit.low, limit.high)
    for limit in tier.limits
  ]


def head_version(params: Mapping[str, Any], names: Sequence[str]) -> str:
  """Returns a token-level head's version: SHA-256 of weights and dimensions.

  Args:
    params: its arrays by name, as `token_head.load` returns them.
  """
  tensors = {name: np.asarray(x, np.float32) for name, x in params.items()}
  return gate_lib.content(tensors, json.dumps(list(names)))


def _mode(version: Version | None, head: Head | None) -> str:
  if version is None:
    return 'unmoderated'
  return 'moderated' if head and version.policy.head else 'closed'
