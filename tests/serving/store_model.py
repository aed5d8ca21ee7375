"""A store as plain dicts: what every other one must do.

It is told the ids and the time, keeps whole histories, and decides by scanning
them.
"""

import dataclasses

from kaiju_jax.serving.stores import characters

Missing, Conflict = characters.Missing, characters.Conflict
OverLimit = characters.OverLimit


class Model:
  """Every method of `conversing.Store`, with plain values.

  Attributes:
    id: what the next character or session is called.
    now: the time.
  """

  def __init__(self, limits):
    self.limits = limits
    self.id = self.now = None
    self.people = {}
    self.talks = {}
    self.words = {}

  def publish(
    self, owner, fields, tokens, tokenizer, character=None, is_public=None
  ):
    what = (fields, tuple(tokens), tokenizer)
    is_new = character is None or (not owner and character not in self.people)
    if is_new:
      own = [one for one in self.people.values() if one['owner'] == owner]
      if len([one for one in own if one['live']]) >= self.limits.characters:
        raise OverLimit
      character = character or self.id
      self.people[character] = {
        'owner': owner,
        'public': bool(is_public),
        'created': self.now,
        'live': 1,
        'last': 1,
        'versions': {1: (*what, self.now)},
      }
      return self.version(character, 1)
    one = self.people.get(character)
    if not (one and not owner and not one['owner']):
      one = self._own(owner, character)
    live = one['versions'].get(one['live'])
    if not (live and live[:3] == what):
      if one['last'] >= self.limits.versions:
        raise OverLimit
      one['last'] += 1
      one['live'] = one['last']
      one['versions'][one['last']] = (*what, self.now)
    if is_public is not None:
      one['public'] = is_public
    return self.version(character, one['live'])

  def rollback(self, owner, character, number):
    one = self._own(owner, character)
    found = self.version(character, number)
    one['live'] = number
    return found

  def character(self, viewer, character):
    self._seen(viewer, character)
    return self.find_character(character)

  def find_character(self, character):
    one = self.people.get(character)
    if not one:
      raise Missing
    name = one['versions'][one['live']][0].name if one['live'] else ''
    return (
      character,
      one['owner'],
      name,
      one['live'],
      one['last'],
      one['public'],
      one['created'],
    )

  def live(self, viewer, character):
    return self.version(character, self._seen(viewer, character)['live'])

  def version(self, character, number):
    one = self.people.get(character)
    if not one or number not in one['versions']:
      raise Missing
    return (character, number, *one['versions'][number])

  def versions(self, viewer, character, limit=100, before=None):
    one = self._seen(viewer, character)
    numbers = one['versions'] if one['owner'] == viewer else {one['live']}
    if before is not None:
      numbers = {number for number in numbers if number < before}
    numbers = sorted(numbers, reverse=True)[:limit]
    return [self.version(character, number) for number in numbers]

  def characters(self, viewer):
    seen = []
    for id_, one in self.people.items():
      if one['live'] and (one['owner'] in (viewer, '') or one['public']):
        seen.append((one['created'], id_))
    return [self.character(viewer, id_) for _, id_ in sorted(seen)]

  def remove(self, owner, character):
    one = self._own(owner, character)
    one['live'], one['public'] = 0, False
    self._sweep(character)

  def open_session(self, owner, character, greeting=0, greetings=None):
    one = self._seen(owner, character)
    fields = one['versions'][one['live']][0]
    both = (fields.greeting, *fields.alternate_greetings)
    texts = [text for text in both if text]
    if greetings is not None:
      texts = greetings(fields)
    if greeting and greeting >= len(texts):
      raise ValueError
    nodes = [
      characters.Message(n, None, 'assistant', text, None, None, self.now)
      for n, text in enumerate(texts)
    ]
    self._full(nodes)
    own = [talk for talk in self.talks.values() if talk['owner'] == owner]
    if len(own) >= self.limits.sessions:
      raise OverLimit
    self.talks[self.id] = {
      'owner': owner,
      'character': character,
      'version': one['live'],
      'greeting': greeting,
      'head': greeting if nodes else None,
      'title': fields.name,
      'created': self.now,
      'updated': self.now,
      'nodes': nodes,
      'ratings': {},
    }
    return self.session(owner, self.id)

  def session(self, owner, session):
    talk = dict(self._talk(owner, session))
    nodes = talk.pop('nodes')
    del talk['ratings']
    return {'id': session, **talk, 'count': len(nodes), 'size': _size(nodes)}

  def sessions(self, owner, is_oldest_first=False):
    own = [
      (talk['updated'], id_)
      for id_, talk in self.talks.items()
      if talk['owner'] == owner
    ]
    own.sort(reverse=not is_oldest_first)
    return [self.session(owner, id_) for _, id_ in own]

  def count_sessions(self, owner):
    return len(self.sessions(owner))

  def idle(self, before, limit=100):
    old = [
      (talk['updated'], id_)
      for id_, talk in self.talks.items()
      if talk['updated'] < before
    ]
    return [
      self.session(self.talks[id_]['owner'], id_)
      for _, id_ in sorted(old)[:limit]
    ]

  def remove_session(self, owner, session):
    character = self._talk(owner, session)['character']
    del self.talks[session]
    if not self.people[character]['live']:
      self._sweep(character)

  def append(
    self,
    owner,
    session,
    parent,
    role,
    text,
    tokens=None,
    finish=None,
    reasoning=None,
    drawn=None,
    **extra,
  ):
    talk = self._talk(owner, session)
    if extra.get('if_head', talk['head']) != talk['head']:
      raise Conflict
    nodes = talk['nodes']
    if parent is not None and parent >= len(nodes):
      raise Missing
    tokens = None if tokens is None else tuple(tokens)
    message = characters.Message(
      len(nodes),
      parent,
      role,
      text,
      tokens,
      finish,
      self.now,
      reasoning,
      drawn,
    )
    self._full([*nodes, message])
    nodes.append(message)
    talk['head'] = message.id
    talk['updated'] = max(talk['updated'], self.now)
    return message

  def messages(self, owner, session):
    return list(self._talk(owner, session)['nodes'])

  def rate(self, owner, session, message, rating):
    talk = self._talk(owner, session)
    if message >= len(talk['nodes']):
      raise Missing
    if talk['nodes'][message].finish is None:
      raise ValueError
    former = talk['ratings'].pop(message, None)
    if rating is not None:
      talk['ratings'][message] = rating
    return former

  def ratings(self, owner, session):
    return self._talk(owner, session)['ratings']

  def agree(self, owner, agrees, if_new=False):
    if not (if_new and owner in self.words):
      self.words[owner] = agrees
    return self.words[owner]

  def agreement(self, owner):
    return self.words.get(owner)

  def agreements(self):
    return self.words

  def set_head(self, owner, session, message):
    talk = self._talk(owner, session)
    if message >= len(talk['nodes']):
      raise Missing
    talk['head'] = message
    talk['updated'] = max(talk['updated'], self.now)
    return self.session(owner, session)

  def rename(self, owner, session, title):
    talk = self._talk(owner, session)
    talk['title'] = title
    talk['updated'] = max(talk['updated'], self.now)
    return self.session(owner, session)

  def _seen(self, viewer, character):
    one = self.people.get(character)
    if not one or not one['live']:
      raise Missing
    if one['owner'] not in (viewer, '') and not one['public']:
      raise Missing
    return one

  def _own(self, owner, character):
    one = self._seen(owner, character)
    if one['owner'] != owner:
      raise characters.NotOwner
    return one

  def _talk(self, owner, session):
    talk = self.talks.get(session)
    if not talk or talk['owner'] != owner:
      raise Missing
    return talk

  def _full(self, nodes):
    if len(nodes) > self.limits.messages or _size(nodes) > self.limits.size:
      raise OverLimit

  def _sweep(self, character):
    """Forgets the versions of a removed character that nobody talks to."""
    used = {
      talk['version']
      for talk in self.talks.values()
      if talk['character'] == character
    }
    versions = self.people[character]['versions']
    for number in set(versions) - used:
      del versions[number]


def plain(result):
  """Returns what a store returned as the model returns it."""
  if isinstance(result, characters.Version):
    return (
      result.character,
      result.number,
      result.fields,
      tuple(result.tokens.tolist()),
      result.tokenizer,
      result.created,
    )
  if isinstance(result, characters.Character):
    return dataclasses.astuple(result)
  if isinstance(result, characters.Session):
    return dataclasses.asdict(result)
  if isinstance(result, tuple):
    return [plain(one) for one in result]
  return result


def _size(nodes):
  return sum(
    len((one.text + (one.reasoning or '')).encode()) + 4 * len(one.tokens or ())
    for one in nodes
  )
