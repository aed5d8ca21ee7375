"""Whose words are exported, on stores that the HTTP server wrote."""

import stat

import pytest

from kaiju_jax.alignment.feedback import export
from kaiju_jax.alignment.feedback import tree
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.serving.http import auth
from tests.alignment import worlds
from tests.alignment.feedback import people
from tests.serving import redis_server
from tests.serving import running

GREETING = ('Good evening, User. The lamp is lit.',)


@pytest.fixture(scope='module', params=redis_server.STORES)
def world(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('server')
  store = server = None
  if request.param == 'redis':
    from kaiju_jax.serving.stores import redis_store

    server = redis_server.Server(has_log=False)
    store = redis_store.RedisStore(server.address)
  with running.server(folder, store=store) as found:
    yield people.World(found, folder)
  if server is not None:
    server.close()


@pytest.fixture
def out(tmp_path):
  return tmp_path / 'out'


def read_all(out) -> str:
  """Returns all that lies in an export's folder, and beside it."""
  return '\n'.join(
    file.read_text() for file in out.parent.rglob('*') if file.is_file()
  )


# Who.


def test_nobody_is_in_it_who_did_not_agree(world, out):
  silent = world.add_person(agrees=False)
  withdrawn = world.add_person()
  revoked = world.add_person()
  minor = world.add_person(agrees=False, age='minor')
  unknown = world.add_person(agrees=False, age='unknown')
  corrected = world.add_person()
  owners = silent, withdrawn, revoked, minor, unknown, corrected
  for owner in owners:
    world.open(owner).say(f'planted by {owner}')
  world.agree(withdrawn, False)
  world.tokens.revoke(revoked)
  # Not even by a word in the store, or by another token that says adult.
  for owner in minor, unknown:
    world.store.agree(owner, True)
  world.tokens.add(corrected, 'minor')
  world.store.agree(auth.LOCAL, False)
  result = world.export(out)
  everything = read_all(out)
  for owner in owners:
    assert world.lines(out, owner) == []
    assert owner not in everything
  assert 'planted' not in everything
  # Nor are they counted.
  assert result.counts['sessions'] == len(result.sessions)
  before = dict(result.counts)
  world.open(silent).say('more')
  assert world.export(out).counts == before


def test_a_token_agrees_until_its_owner_withdraws(world, out):
  owner = world.add_person(agrees=False, feedback=True)
  world.open(owner).say('By a token')
  assert len(world.exported(out, owner)) == 1
  world.agree(owner, False)
  assert world.exported(out, owner) == []


def test_the_server_s_own_user_needs_no_token(world, out):
  talk = world.store.open_session(auth.LOCAL, running.CHARACTER).id
  world.store.append(auth.LOCAL, talk, 0, 'user', 'Who?')
  world.store.append(auth.LOCAL, talk, 3, 'assistant', 'Me.', finish='stop')
  assert world.exported(out, auth.LOCAL) == []
  world.store.agree(auth.LOCAL, True)
  assert len(world.exported(out, auth.LOCAL)) == 1
  world.store.agree(auth.LOCAL, False)


def test_names_and_times_are_in_no_file(world, out):
  owner, talk = world.begin()
  reply = talk.say('No names')
  result = world.export(out)
  everything = read_all(out)
  assert talk.id not in everything and owner not in everything
  for one in talk.messages:
    assert str(int(one.created))[:7] not in everything
  names = export.Pseudonyms(world.key)
  assert names.name('session', talk.id) in result.sessions
  # Nor are they those of the log of requests, or of blocked texts.
  assert names.name('owner', owner) != names.name('session', owner)
  (line,) = world.lines(out, owner)
  assert line[-1]['drawn']['seed'] == reply.drawn.seed == 3


# What.


def test_swipes_edits_and_endings_become_choices(world, out):
  owner, talk = world.begin()
  one = talk.say('Who are you?')
  two, three = talk.say(None, seed=4), talk.say(None, seed=5)
  talk.show(two)
  last = talk.say('Go on.')
  # An edit of the first question begins another branch.
  said = talk.edit(talk.messages[3], 'Who am I?')
  talk.show(said)
  other = talk.say(None, swipe=False)
  written = talk.edit(other, 'You are you.')
  result = world.export(out)
  first, second = world.lines(out, owner)
  assert first[0] == {
    'role': 'system',
    'content': prompt.persona(running.FIELDS),
  }
  assert people.texts_of(first) == [
    GREETING,
    'Who are you?',
    {one.text: False, two.text: True, three.text: False},
    'Go on.',
    last.text,
  ]
  assert people.texts_of(second) == [
    GREETING,
    'Who am I?',
    {other.text: False, written.text: True},
  ]
  assert first[3]['sign'] == 'went_on' and second[3]['sign'] == 'shown'
  assert second[3]['replies'][1]['written']
  assert [x['drawn']['seed'] for x in first[3]['replies']] == [3, 4, 5]
  least = {
    'choices': 2, 'regenerations': 2, 'replies_edited': 1, 'endings': 2,
    'replies_passed_over': 3,
  }  # fmt: skip
  assert all(result.counts[name] >= count for name, count in least.items())


def test_of_equal_replies_the_one_that_was_kept_counts(world, out):
  owner = world.add_person()
  for seeds in (3, 4, 3), (4, 3, 3), (3, 3, 4):
    talk = world.open(owner)
    first, *others = seeds
    replies = [talk.say('Who are you?', seed=first)]
    replies += [talk.say(None, seed=seed) for seed in others]
    talk.say('Go on.')  # Below the last one.
    world.export(out)
    line = world.lines(out, owner)[-1]
    texts = {one.text: one is replies[-1] for one in replies}
    assert len(texts) == 2
    assert people.texts_of(line)[2] == texts
    world.agree(owner, False)
    owner = world.add_person()


def test_a_turn_teaches_once_however_many_lines_go_on_from_it(world, out):
  owner, talk = world.begin()
  reply = talk.say('Hello there')
  asked = talk.say('One way').parent
  talk.edit(talk.messages[asked], 'Another way')
  talk.say(None, swipe=False)
  first, second = map(people.texts_of, world.exported(out, owner))
  assert first[:3] == [GREETING, 'Hello there', reply.text]
  assert second[:3] == [GREETING, 'Hello there', (reply.text,)]
  assert first[3] == 'One way' and second[3] == 'Another way'


def test_ratings_come_before_what_was_done(world, out):
  owner, talk = world.begin()
  bad = talk.say('Rate this')
  good = talk.say(None, seed=4)
  talk.rate(good, 'good')
  talk.rate(bad, 'bad')
  talk.show(bad)
  end = talk.say('You said so.')  # Behind the bad one.
  talk.rate(end, 'wrongly_refused')
  result = world.export(out)
  (line,) = world.lines(out, owner)
  assert people.texts_of(line) == [
    GREETING,
    'Rate this',
    {bad.text: False, good.text: True},
  ]
  assert line[-1]['sign'] == 'rated'
  assert [x['rating'] for x in line[-1]['replies']] == ['bad', 'good']
  assert result.counts['rated_wrongly_refused'] >= 1
  # A rating that is withdrawn counts no longer.
  for one in bad, good, end:
    talk.rate(one, None)
  (line,) = world.exported(out, owner)
  assert people.texts_of(line)[2] == {bad.text: True, good.text: False}
  assert people.texts_of(line)[-1] == end.text


@pytest.mark.parametrize('shown', [None, 2])
def test_what_safety_ended_is_in_no_line(world, out, shown):
  owner, talk = world.begin()
  before = talk.say('The first one')
  with world.moderating(people.Filter(shown)):
    filtered = talk.say('PLANTED question')
  assert filtered.finish == 'content_filter'
  assert bool(filtered.text) == bool(shown)
  talk.rate(filtered, 'wrongly_refused')
  talk.say('PLANTED further on')
  talk.show(filtered)
  swiped = talk.say(None, seed=9)
  result = world.export(out)
  lines = [people.texts_of(one) for one in world.lines(out, owner)]
  # Of what was shown in part the question stays, with its other reply.
  more = ['PLANTED question', swiped.text] if shown else []
  assert lines == [[GREETING, 'The first one', before.text, *more]]
  assert 'further on' not in read_all(out)
  assert result.counts['filtered_rated_wrongly_refused'] >= 1


def test_reasoning_is_in_no_line(world, out):
  owner, talk = world.begin()
  talk.say('Think first')
  said = talk.messages[-2].id
  world.store.append(
    *(owner, talk.id, said, 'assistant', 'Two.'),
    tokens=[80, 76],
    finish='stop',
    reasoning='PONDERED thought',
  )
  assert len(world.exported(out, owner)) == 1
  everything = read_all(out)
  assert '"Two."' in everything and 'PONDERED' not in everything
  assert '"tokens"' not in everything and '80, 76' not in everything


def test_a_reply_whose_reader_left_is_no_candidate(world, out):
  owner, talk = world.begin()
  talk.say('Left early')
  said = talk.messages[-2].id
  world.store.append(
    owner, talk.id, said, 'assistant', 'Cut o', finish=tree.CANCELLED
  )
  (line,) = world.exported(out, owner)
  assert people.texts_of(line) == [
    GREETING,
    'Left early',
    talk.messages[4].text,
  ]
  # The conversation went on below it: it is context.
  end = talk.say('And?')
  lines = [people.texts_of(one) for one in world.exported(out, owner)]
  assert [GREETING, 'Left early', ('Cut o',), 'And?', end.text] in lines


def test_private_characters_are_told_by_their_owners_alone(world, out):
  author, reader = world.add_person(agrees=False), world.add_person()

  def change(name, is_public, **fields):
    body = {'fields': {'name': 'Ivo', 'greeting': 'Hm?'} | fields}
    path = f'/v1/characters/{name}'
    world.server.ask('PUT', path, body | {'public': is_public}, author)

  name = world.publish(author, 'Ivo', True, description='Lives in a hut.')
  world.open(reader, name).say('Hello')
  (line,) = world.exported(out, reader)
  assert 'Lives in a hut.' in line[0]['content']
  # An earlier version is its author's alone; so is one that is private again.
  change(name, True, description='Lives nowhere.')
  assert world.exported(out, reader) == []
  world.agree(author, True)
  assert len(world.exported(out, reader)) == 1
  change(name, False, description='Lives nowhere.')
  assert world.exported(out, reader) == []
  world.agree(author, False)
  change(name, True, description='Lives in a hut.')
  assert 'hut' not in read_all(out)
  own = world.publish(reader, 'Eve', False, description='My own.')
  talk = world.open(reader, own)
  talk.say('Hello')
  (line,) = world.exported(out, reader)
  assert 'My own.' in line[0]['content']
  world.server.ask('DELETE', f'/v1/characters/{own}', owner=reader)
  assert world.exported(out, reader) == [] and 'My own.' not in read_all(out)


def test_equal_conversations_are_one_line(world, out):
  owners = [world.add_person() for _ in range(3)]
  for owner in owners:
    world.open(owner).say('The very same', temperature=0)
  result = world.export(out)
  assert sum(len(world.lines(out, owner)) for owner in owners) == 1
  assert result.counts['lines_repeated'] >= 2
  # Equal replies of a turn are one, and then no choice.
  owner, talk = world.begin()
  replies = [talk.say('Once', temperature=0), talk.say(None, temperature=0)]
  assert replies[0].text == replies[1].text
  (line,) = world.exported(out, owner)
  assert people.texts_of(line) == [GREETING, 'Once', replies[0].text]


def test_equal_replies_to_other_questions_are_all_told(world, out):
  owner = world.add_person()
  for question in 'Is it day?', 'Is it night?':
    talk = world.open(owner)
    said = world.store.append(owner, talk.id, 0, 'user', question)
    world.store.append(
      owner, talk.id, said.id, 'assistant', 'Yes.', finish='stop'
    )
  assert len(world.exported(out, owner)) == 2


# What is gone, and the files.


def test_what_is_deleted_or_withdrawn_is_gone_from_the_next_one(world, out):
  owner = world.add_person()
  first, second = world.open(owner), world.open(owner)
  first.say('DELETED text')
  second.say('WITHDRAWN text')
  names = export.Pseudonyms(world.key)
  one, two = (names.name('session', talk.id) for talk in (first, second))
  assert {one, two} <= {*world.export(out).sessions}
  first.remove()
  result = world.export(out)
  assert one in result.gone and two in result.sessions
  assert 'DELETED' not in read_all(out)
  world.agree(owner, False)
  result = world.export(out)
  assert {one, two} <= {*result.gone}
  assert 'WITHDRAWN' not in read_all(out)
  # It stays on the list, for whoever missed an export; until it is back.
  assert {one, two} <= {*world.export(out).gone}
  world.agree(owner, True)
  result = world.export(out)
  assert one in result.gone and two in result.sessions
  assert two not in result.gone


@pytest.mark.parametrize('what', ['delete', 'withdraw', 'say'])
def test_what_happens_meanwhile_leaves_it_whole(world, out, monkeypatch, what):
  owner, talk = world.begin()
  talk.say('MEANWHILE said')
  read, done = tree.read, []

  def read_late(session, messages, ratings, system):
    if session.id == talk.id and not done:
      done.append(what)
      if what == 'delete':
        talk.remove()
      elif what == 'withdraw':
        world.agree(owner, False)
      else:
        talk.say('LATER said')
    return read(session, messages, ratings, system)

  monkeypatch.setattr(tree, 'read', read_late)
  result = world.export(out)
  assert done
  is_in = export.Pseudonyms(world.key).name('session', talk.id)
  assert (is_in in result.sessions) == (what == 'say')
  assert ('MEANWHILE' in read_all(out)) == (what == 'say')
  assert 'LATER' not in read_all(out)


def test_the_same_store_gives_the_same_private_files(world, out, tmp_path):
  owner = world.add_person()
  for number in range(8):
    world.open(owner).say(f'Number {number}')
  world.export(out)
  again = tmp_path / 'again'
  world.export(again)
  for path in out, again:
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    names = sorted(file.name for file in path.iterdir())
    assert names == sorted([export.TRAIN, export.HELD_OUT, export.MANIFEST])
  # By pseudonyms: any other order would tell who came, or spoke, when.
  for file in export.TRAIN, export.HELD_OUT:
    lines = worlds.read_lines(out / file)
    order = [(line['owner'], line['session']) for line in lines]
    assert order == sorted(order)
  for file in out.iterdir():
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes() == (again / file.name).read_bytes()


def test_a_person_is_in_one_of_the_files(world, out):
  owners = [world.add_person() for _ in range(8)]
  for owner in owners:
    for text in 'One', 'Two':
      world.open(owner).say(f'{text} of {owner}')
  held = {}
  for share in 0.0, 0.5, 1.0:
    world.export(out, held_out=share)
    found = [
      {line['owner'] for line in worlds.read_lines(out / file)}
      for file in (export.TRAIN, export.HELD_OUT)
    ]
    assert not found[0] & found[1]
    held[share] = found[1]
    both = found[0] | found[1]
  # A larger share has those of a smaller one.
  assert held[0.0] == set() and held[0.5] <= held[1.0] == both
  assert len(both) >= len(owners)


def test_the_report_tells_how_places_decided(world, out):
  before = world.export(out)
  owner = world.add_person()
  for number in range(3):
    talk = world.open(owner)
    replies = [talk.say(f'Place {number}', seed=number)]
    replies += [talk.say(None, seed=10 + n) for n in range(2)]
    talk.show(replies[2 if number else 0])
    talk.say('Go on.')
  result = world.export(out)
  moved = {
    place: count - before.places.get(place, 0)
    for place, count in result.places.items()
  }
  assert {place: n for place, n in moved.items() if n} == {(3, 0): 1, (3, 2): 2}
  told = '\n'.join(export.describe(result))
  assert 'Kept of 3 replies, by place: ' in told
  assert 'The last one drawn was kept in ' in told
