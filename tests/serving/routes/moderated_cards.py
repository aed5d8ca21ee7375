"""Cards with a marker in each of their texts, and a server that judges them."""

import copy

import pytest

from kaiju_jax.characters.cards import card_fields
from tests.serving import running
from tests.serving.routes import moderated

MARKER = moderated.MARKER.decode()
BLOCKED = 400, 'content_filter'
PLAIN = card_fields.Fields(
  name='Ivo',
  nickname='I',
  description='A sailor.',
  personality='calm',
  scenario='a boat',
  greeting='Hm?',
  alternate_greetings=('Yes?', 'What?'),
  examples='<START>\n{{user}}: Hi\n{{char}}: Hm',
  system_prompt='Be brief.',
  post_history='Stay calm.',
  lore=(
    card_fields.Lore(
      keys=('lamp', 'oil'),
      content='The lamp is lit.',
      secondary_keys=('night',),
      name='lamp',
    ),
  ),
  creator='Ann',
  notes='For the sea.',
  tags=('sea', 'calm'),
  version_name='1.0',
  extensions={'world': {'place': ['a bay', {'tide': 'high'}]}},
)


class Moderator(moderated.Moderator):
  """Blocks the marker, and for minors 'quamlith', too.

  Attributes:
    version: of the gate.
    also: a word that it blocks for minors, too.
    texts: what it has read.
    has_failed: whether the gate fails.
    meanwhile: called once, while the next text is read.
  """

  def __init__(self):
    super().__init__(8)
    self.version, self.also = 'first', MARKER
    self.texts = []
    self.has_failed = False
    self.meanwhile = []

  def watch(self, age, owner=''):
    made = copy.copy(self)
    made.tier = 'adult' if age == 'adult' else 'minor'
    return made

  def read(self, text):
    while self.meanwhile:
      self.meanwhile.pop()()
    self.texts.append(text)
    words = [MARKER]
    if self.tier == 'minor':
      words += ['quamlith', self.also]
    is_blocked = any(word in text for word in words)
    verdict = super().read('')
    return verdict._replace(is_blocked=is_blocked, has_failed=self.has_failed)


@pytest.fixture(scope='module')
def moderator():
  return Moderator()


@pytest.fixture(scope='module')
def server(tmp_path_factory, moderator):
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, moderator=moderator) as server:
    yield server


def refused(server, method, path, body=None, owner='ann', **options):
  """Returns the status and the code of an error, which has no marker."""
  status, error = server.refused(method, path, body, owner, **options)
  assert MARKER not in str(error)
  return status, error['code']
