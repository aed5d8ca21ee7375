"""Random operations, on a store and on the model of it at once."""

import random

from hypothesis import stateful
from hypothesis import strategies
import numpy as np
import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import sharing
from tests.serving import store_model
from tests.serving import trivial

# Small, so that random operations reach them.
LIMITS = rules.Limits(
  characters=4, versions=6, sessions=4, messages=14, size=1_500
)
OWNERS = ('ann', 'bob', "o'x:*\x00é")
TEXTS = ('', 'a', 'zwei Wörter', '👍🏽\n\x00"\\\'', '‏שלום', 'x' * 300)
# A character's fields take no control characters.
WRITTEN = ('', 'a', 'zwei Wörter', '👍🏽\n"\\\'', '‏שלום', 'x' * 300)
NAMES = ('Ann', 'Captain Nemo', '東京', 'x' * 200)
DRAWN = characters.Drawn('a1', '0.1', 2**32 - 1, 0.7, 5, 0.9, 0.1, 1.1, True)
# Each as often as it is named.
NAMES_OF_MOVES = (
  *('append',) * 8,
  *('publish', 'open') * 5,
  *('rate',) * 3,
  *('head', 'rollback', 'character') * 2,
  *('agree', 'rename', 'remove', 'close', 'count'),
)


class Moves(stateful.RuleBasedStateMachine):
  """Does the same to a store, opened twice, and to its model."""

  def __init__(self, open_store, done):
    super().__init__()
    # Stands still within an operation, and may go back.
    self.clock, self.done, self.steps = trivial.Clock(1_000.0), done, 0
    self.stores = [open_store(LIMITS, self.clock) for _ in range(2)]
    self.model = store_model.Model(LIMITS)
    self.digests, self.former = {}, {}

  @stateful.rule(
    seed=strategies.integers(0, 2**32 - 1),
    name=strategies.sampled_from(NAMES_OF_MOVES),
    seconds=strategies.sampled_from((0, 0, 0.25, 1 / 3, 7, -2)),
  )
  def move(self, seed, name, seconds):
    self.rng = random.Random(seed)
    self.clock.now += seconds
    self.steps += 1
    getattr(self, f'move_{name}')()
    if self.steps % 2:
      self.look()
    if self.steps % 10 == 9:
      self.look_at_trees()

  @property
  def store(self):
    return self.rng.choice(self.stores)

  def both(self, name, *values, **named):
    """Returns what the store returned, or raised, which is what is expected."""
    kind = found = None
    try:
      found = getattr(self.store, name)(*values, **named)
    except Exception as error:
      kind, message = type(error), str(error)
    self.model.now = self.clock.now
    self.model.id = getattr(found, 'character', getattr(found, 'id', 'none'))
    if isinstance(found, characters.Session):
      self.model.id = found.id
    self.done[name, kind] += 1
    if kind is None:
      assert store_model.plain(found) == getattr(self.model, name)(
        *values, **named
      ), name
    else:
      with pytest.raises(Exception) as expected:
        getattr(self.model, name)(*values, **named)
      assert kind is expected.type, (name, message, expected)
      assert message
    for one in found if isinstance(found, tuple) else (found,):
      if isinstance(one, characters.Version):
        self.digest(one)
    return found

  def digest(self, version):
    """A digest stands for tokens and tokenizer, and for nothing else."""
    stands = (version.tokens.tobytes(), version.tokenizer)
    assert self.digests.setdefault(stands, version.digest) == version.digest
    assert len(set(self.digests.values())) == len(self.digests)

  def look(self):
    """Lists all that one owner sees, in pages, and one conversation."""
    viewer, size = self.owner(), self.rng.randint(1, 4)
    self.pages('characters', size, viewer)
    for order in {}, {'is_oldest_first': True}:
      self.pages('sessions', size, viewer, **order)
    owner, session = self.talk()
    self.both('messages', owner, session)
    self.both('session', owner, session)
    self.both('ratings', owner, session)
    self.both('agreement', self.owner())
    self.both('agreements')
    self.both('versions', *self.person())
    self.both('find_character', self.person()[1])

  def look_at_trees(self):
    """Compares who reads which tree with all requests that may come."""
    store, digests = self.store, {}
    read, public = set(), set()
    for name, one in self.model.people.items():
      digests[name] = {
        number: rules.digest(np.array(version[1], np.int32), version[2])
        for number, version in one['versions'].items()
      }
      live = digests[name].get(one['live'])
      is_everybodys = live is not None and (one['public'] or not one['owner'])
      if is_everybodys:
        read.add(sharing.Tree(live, name))
        public.add(sharing.Tree(live, name))
      if live is not None and one['owner']:
        # Of any version, because a rollback may make it live.
        read |= {
          sharing.Tree(x, name, one['owner']) for x in digests[name].values()
        }
    for talk in self.model.talks.values():
      name, number = talk['character'], talk['version']
      one, digest = self.model.people[name], digests[name][number]
      tree = sharing.Tree(digest, name)
      if talk['owner'] == one['owner'] and tree not in public:
        tree = tree._replace(owner=talk['owner'])
      if not one['owner']:
        public.add(tree)
      read.add(tree)
      version = store.version(name, number)
      assert sharing.find_tree(store, talk['owner'], version) == tree
    for name, versions in digests.items():
      # Those of versions that are gone, too.
      former = self.former.setdefault(name, set())
      former |= {*versions.values()}
      for digest in former:
        for owner in '', *OWNERS:
          tree = sharing.Tree(digest, name, owner)
          assert sharing.Tree.parse(tree.salt) == tree
          assert sharing.is_read(store, tree) == (tree in read), tree
          assert sharing.is_public(store, tree) == (tree in public), tree
          self.done['read', tree in read] += 1
          self.done['public', tree in public] += 1

  def pages(self, name, size, viewer, **order):
    found, after = [], ''
    while True:
      page = getattr(self.store, name)(viewer, limit=size, after=after, **order)
      assert len(page) <= size
      found += page
      if len(page) < size:
        break
      after = characters.cursor(page[-1])
      assert len(found) < 100
    expected = getattr(self.model, name)(viewer, **order)
    assert [store_model.plain(one) for one in found] == expected

  def owner(self):
    return self.rng.choice(OWNERS)

  def person(self, built_in=False):
    """Returns (owner, character): often the character's own."""
    rng, people = self.rng, self.model.people
    if not people or rng.random() < 0.1:
      return self.owner(), rng.choice(('nobody', 'no/id', ''))
    character = rng.choice([*people])
    owner = people[character]['owner']
    if rng.random() < 0.3 or (not owner and not built_in):
      owner = self.owner()
    return owner, character

  def talk(self):
    """Returns (owner, session): mostly the session's own."""
    rng, talks = self.rng, self.model.talks
    if not talks or rng.random() < 0.1:
      return self.owner(), rng.choice(('nothing', 'no/id', ''))
    session = rng.choice([*talks])
    owner = talks[session]['owner'] if rng.random() < 0.9 else self.owner()
    return owner, session

  def fields(self):
    rng = self.rng
    return card_fields.Fields(
      name=rng.choice(NAMES),
      description=rng.choice(WRITTEN),
      greeting=rng.choice(WRITTEN),
      alternate_greetings=tuple(rng.choices(WRITTEN, k=rng.randint(0, 2))),
      lore=tuple(
        card_fields.Lore(('k', rng.choice(('a', 'é'))), rng.choice(WRITTEN))
        for _ in range(rng.randint(0, 1))
      ),
      tags=tuple(rng.choices(('t', 'u'), k=rng.randint(0, 2))),
      extensions=rng.choice(({}, {'b': {'c': [1, 2.5, None]}, 'a': 'é'})),
    )

  def move_publish(self):
    rng = self.rng
    if rng.random() < 0.5:
      owner, character = self.owner(), None
    else:
      owner, character = self.person(built_in=True)
    if rng.random() < 0.2:
      owner, character = '', rng.choice(('alice', 'tom', None))
    tokens = rng.choice(([], [1, 2, 3], [1, 2, 2**31 - 1]))
    fields, tokenizer = self.fields(), rng.choice(('bytes', 'bpe'))
    public = rng.choice((None, None, False, True, True))
    if not owner and character in ('no/id', ''):
      character = None
    for _ in range(rng.choice((1, 1, 2))):  # Twice is once.
      version = self.both(
        'publish', owner, fields, tokens, tokenizer, character, public
      )
      character = getattr(version, 'character', character)

  def move_rollback(self):
    self.both('rollback', *self.person(True), self.rng.randint(1, 4))

  def move_character(self):
    for name in 'character', 'live':
      self.both(name, *self.person())
    _, character = self.person()
    self.both('version', character, self.rng.randint(1, 6))
    self.both(
      'versions',
      *self.person(built_in=True),
      limit=self.rng.randint(1, 3),
      before=self.rng.choice((None, 0, 1, 3, 9)),
    )

  def move_remove(self):
    self.both('remove', *self.person(built_in=True))

  def move_open(self):
    made = self.rng.choice((None, None, lambda fields: ['1', fields.name]))
    greeting = self.rng.choice((0, 0, 0, 1, 2))
    self.both('open_session', *self.person(), greeting, made)

  def move_append(self):
    for _ in range(self.rng.randint(1, 4)):
      owner, session = self.talk()
      self.both(
        'append',
        owner,
        session,
        self.node(session),
        self.rng.choice(('user', 'assistant')),
        self.rng.choice(TEXTS),
        tokens=self.rng.choice((None, (), [5], (7, 2**31 - 1))),
        finish=self.rng.choice((None, 'stop')),
        reasoning=self.rng.choice((None, None, 'Hm.')),
        drawn=self.rng.choice((None, DRAWN)),
        **self.expectation(session),
      )

  def move_head(self):
    owner, session = self.talk()
    node = self.node(session) or 0
    self.both('set_head', owner, session, node)

  def move_rate(self):
    owner, session = self.talk()
    node = self.node(session) or 0
    rating = self.rng.choice((None, *characters.RATINGS))
    self.both('rate', owner, session, node, rating)

  def move_agree(self):
    word = self.rng.choice((True, False))
    self.both('agree', self.owner(), word, self.rng.choice((True, False)))

  def move_rename(self):
    self.both('rename', *self.talk(), self.rng.choice(TEXTS[:4]))

  def move_close(self):
    self.both('remove_session', *self.talk())

  def move_count(self):
    self.both('count_sessions', self.owner())
    self.both('idle', self.clock.now - self.rng.choice((0, 5)), limit=3)

  def node(self, session):
    """Returns a message's id, seldom of none; or None."""
    nodes = self.model.talks.get(session, {}).get('nodes', ())
    return self.rng.choice((None, *range(len(nodes) + 1)))

  def expectation(self, session):
    """Returns what the head should be: mostly what it is."""
    head = self.model.talks.get(session, {}).get('head')
    heads = ({}, {'if_head': head}, {'if_head': head}, {'if_head': 3})
    return self.rng.choice((*heads, {'if_head': None}))
