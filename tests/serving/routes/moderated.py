"""A moderated server, whose gate and head are scripted."""

import json

from kaiju_jax.decoding.engine import admission
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import release
from tests.serving import running
from tests.serving import world

MARKER = b'zorbifex'
LOW, HIGH = 0.3, 0.9
SAID = {'messages': [{'role': 'user', 'content': 'Hello'}]}


def scores(text: bytes) -> tuple[float, float]:
  """Returns what the head gives a text's end: for the marker, for nothing."""
  if text.endswith(MARKER):
    return 0.99, 0.0
  begun = (MARKER[:n] for n in range(1, len(MARKER)))
  return (0.6 if text.endswith(tuple(begun)) else 0.01), 0.0


class Moderator:
  """Stands for `moderation.Moderator`, with thresholds that nobody certified.

  Args:
    hold: tokens that a reply is held back.
  """

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


def served(tmp_path, reply, hold=8):
  def engine(tokenizer):
    return world.Scripted(
      tokenizer,
      reply,
      scores,
      rows=4,
      length=running.LENGTH,
      pages=2000,
      limits=admission.Limits(lease=30),
    )

  return running.server(tmp_path, engine=engine, moderator=Moderator(hold))


def send(server, **body):
  return server.post(
    '/v1/chat/completions',
    'ann',
    **{'model': running.MODEL, 'max_tokens': 60} | SAID | body,
  )


def streamed(server, **body):
  """Returns a stream's text and its reason, piece by piece."""
  answer = server.ask(
    'POST',
    '/v1/chat/completions',
    {'model': running.MODEL, 'max_tokens': 60, 'stream': True} | SAID | body,
    'ann',
  )
  text, reason = '', None
  for line in answer.decode().splitlines():
    if line.startswith('data: {'):
      for choice in json.loads(line[6:])['choices']:
        text += choice['delta'].get('content') or ''
        reason = choice['finish_reason'] or reason
  return text, reason
