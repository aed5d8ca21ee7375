"""A moderated server, whose gate and head are scripted."""

import functools

from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import release
from tests.serving import running
from tests.serving import world

MARKER = b'zorbifex'
LOW, HIGH = 0.3, 0.9
REFUSED = '', 'content_filter'
PASSED = moderation.Verdict(False, 'gate', 'adult')


def scores(text: bytes) -> tuple[float, float]:
  """Returns what the head gives a text's end: for the marker, for nothing."""
  if text.endswith(MARKER):
    return 0.99, 0.0
  begun = (MARKER[:n] for n in range(1, len(MARKER)))
  return (0.6 if text.endswith(tuple(begun)) else 0.01), 0.0


class Moderator:
  """A moderator of thresholds that nobody certified; holds back tokens."""

  mode = 'moderated'

  def __init__(self, hold):
    self.hold = hold
    self.high = HIGH
    self.stopped = []
    self.texts = []  # What the head judges with a prompt.

  def watch(self, age, owner=''):
    self.tier = age
    return self

  def read(self, text):
    is_blocked = MARKER.decode() in text
    return moderation.Verdict(is_blocked, 'gate', self.tier)

  def prompt(self, scores, text=''):
    self.texts.append(text)
    is_blocked = scores is None or scores[0] >= self.high
    return moderation.Verdict(is_blocked, 'prompt', self.tier)

  def release(self):
    bounds = [release.Bound(name, LOW, HIGH) for name in world.NAMES]
    return release.Release(bounds, self.hold, self.stopped.append)


def served(folder, reply, hold=8, moderator=None, alternatives=0, **options):
  """Runs a server whose replies and scores are written down."""
  kind = functools.partial(
    world.Scripted, reply=reply, score=scores, alternatives=alternatives
  )
  moderator = moderator or Moderator(hold)
  return running.server(folder, kind=kind, moderator=moderator, **options)


def choices(server, text='Hello', **fields):
  """Returns a chat's choices."""
  return server.chat(text, **{'max_tokens': 60} | fields)['choices']


def streamed(server, text='Hello', **fields):
  """Returns a stream's text and its reason."""
  return server.streamed(text, **{'max_tokens': 60} | fields)
