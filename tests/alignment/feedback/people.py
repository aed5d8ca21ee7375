"""People who talk to a server over HTTP, and the exports of what they say."""

import contextlib
import itertools
import pathlib

from kaiju_jax.alignment.feedback import export
from kaiju_jax.app import server_folder
from kaiju_jax.data import conversations
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import release
from tests.alignment import worlds
from tests.serving import running


class Filter:
  """Stands for a moderator that ends each reply.

  Args:
    shown: tokens of it that are shown; None for a prompt that is refused.
  """

  mode, tier, version = 'moderated', 'adult', 'v'

  def __init__(self, shown):
    self._shown = shown

  def watch(self, age, owner=''):
    return self

  def read(self, text):
    return moderation.Verdict(False, 'gate', self.tier)

  def prompt(self, scores, text=''):
    return moderation.Verdict(self._shown is None, 'prompt', self.tier)

  def release(self):
    self._pushed = itertools.count()
    return self

  def push(self, text, scores):
    if next(self._pushed) < self._shown:
      return release.Released(text, 1, False)
    return release.Released('', 0, True)


class World:
  """A server, its folder, and exports of its feedback.

  Attributes:
    server: `running.Server`.
    store: its store, for what no client can do.
    key: the key of its folder.
  """

  def __init__(self, server, folder: pathlib.Path):
    self.server, self._folder = server, folder
    self.store = server.store
    self.tokens = auth.Tokens(folder / auth.FILE)
    self.key = server_folder.load_key(folder)
    self._names = itertools.count()

  def add_person(self, agrees=True, age='adult', **token) -> str:
    """Returns a new owner; who agrees has said so over HTTP."""
    owner = f'person{next(self._names)}'
    self.server.tokens[owner] = self.tokens.add(
      owner, age, rate=limits.LOCAL, **token
    )
    if agrees:
      self.agree(owner, True)
    return owner

  def agree(self, owner: str, agrees: bool) -> None:
    self.server.ask('PUT', '/v1/feedback', {'agrees': agrees}, owner)

  def publish(self, owner: str, name: str, is_public: bool, **fields) -> str:
    """Returns the id of a new character."""
    fields = {'name': name, 'greeting': f'I am {name}.'} | fields
    return self.server.post(
      '/v1/characters', owner, fields=fields, public=is_public
    )['id']

  def open(self, owner: str, character: str = running.CHARACTER) -> 'Talk':
    made = self.server.post('/v1/sessions', owner, character=character)
    return Talk(self, owner, made['id'])

  def begin(self) -> tuple[str, 'Talk']:
    """Returns a new owner who agrees, and a conversation."""
    owner = self.add_person()
    return owner, self.open(owner)

  @contextlib.contextmanager
  def moderating(self, moderator):
    context = self.server.context
    former, context.moderator = context.moderator, moderator
    try:
      yield
    finally:
      context.moderator = former

  def export(self, out, **options) -> export.Export:
    return export.export(self.store, self.tokens, self.key, out, **options)

  def exported(self, out, owner: str) -> list[list[dict]]:
    """Exports; returns an owner's lines as `lines`."""
    self.export(out)
    return self.lines(out, owner)

  def lines(self, out, owner: str) -> list[list[dict]]:
    """Returns the messages of an owner's lines, in both files."""
    name = export.Pseudonyms(self.key).name('owner', owner)
    found = []
    for file in export.TRAIN, export.HELD_OUT:
      for data in worlds.read_lines(out / file):
        if data['owner'] == name:
          # The reader takes each line, and loses nothing of it.
          check_read(data['messages'], conversations.parse(data))
          found.append(data['messages'])
    return found


class Talk:
  """A conversation of one owner."""

  def __init__(self, world: World, owner: str, session: str):
    self._world, self.owner, self.id = world, owner, session
    self.path = f'/v1/sessions/{session}'

  @property
  def messages(self):
    return self._world.store.messages(self.owner, self.id)

  def say(self, text: str | None, seed: int = 3, **body):
    """Says something, or asks for another reply; returns the reply."""
    said = [] if text is None else [{'role': 'user', 'content': text}]
    self._world.server.post(
      '/v1/chat/completions',
      self.owner,
      model=running.MODEL,
      messages=said,
      session=self.id,
      seed=seed,
      **{'max_tokens': 6, 'swipe': text is None} | body,
    )
    return self.messages[-1]

  def edit(self, message, text: str):
    """Edits a message; returns the new one."""
    self._world.server.post(
      f'{self.path}/messages',
      self.owner,
      parent=message.parent,
      role=message.role,
      text=text,
    )
    return self.messages[-1]

  def show(self, message) -> None:
    body = {'message': message.id}
    self._world.server.ask('PUT', f'{self.path}/head', body, self.owner)

  def rate(self, message, rating: str | None) -> None:
    self._world.server.post(
      f'{self.path}/messages/{message.id}/rating', self.owner, rating=rating
    )

  def remove(self) -> None:
    self._world.server.ask('DELETE', self.path, owner=self.owner)


def check_read(written: list[dict], read) -> None:
  """Compares a line with what the reader of training data makes of it."""
  assert len(written) == len(read)
  for one, message in zip(written, read):
    assert one['role'] == message.role
    replies = one.get('replies', ())
    assert tuple((x['content'], x['kept']) for x in replies) == message.replies
    if not replies:
      assert one['content'] == message.content
    assert message.weight == one.get('weight', 1.0)


def texts_of(line: list[dict]) -> list:
  """Returns the texts of a line without its system message.

  A choice stands as {text: whether it was kept}, a text without weight as
  (text,).
  """
  found = []
  for one in line:
    if one['role'] == 'system':
      continue
    if 'replies' in one:
      found.append({x['content']: x['kept'] for x in one['replies']})
    else:
      is_context = one.get('weight') == 0
      found.append((one['content'],) if is_context else one['content'])
  return found
