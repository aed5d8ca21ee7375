"""What a server's cache has after a restart, and what it must not have."""

from concurrent import futures
import contextlib
import logging
import resource

import pytest

from kaiju_jax.app import server_folder
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.replies import saved_points
from kaiju_jax.storage import files
from kaiju_jax.storage import locks
from tests.decoding import fake_device
from tests.decoding import saved_device
from tests.serving import recording
from tests.serving import running
from tests.serving import trivial
from tests.serving import world
from tests.serving.routes import moderated_cards
from tests.serving.routes import saving

CARD = {'name': 'Nell', 'description': 'Nell paints boats, all of them blue.'}


@pytest.fixture
def start(tmp_path):
  """Returns a function that starts a server with the same folder."""
  engines = []

  def start(kind='all', judge=None, pages=2000, moderator=None, **options):
    def engine(tokenizer):
      made = world.Engine(
        tokenizer,
        length=running.LENGTH,
        pages=pages,
        is_judged=judge is not None,
      )
      if judge is not None:
        made.judge.version = judge
      engines.append(made)
      return made

    points = saving.points(tmp_path, kind, **options)
    return running.server(
      tmp_path, engine=engine, points=points, moderator=moderator
    )

  yield start
  assert not list(tmp_path.glob(f'**/.*{files.PARTIAL}'))
  for engine in engines:
    assert fake_device.is_empty(engine.decoder)


def listed(folder):
  return sorted(x.name for x in (folder / 'points').glob('*.points'))


def say(server, owner, session, text='Good evening, is the lamp lit?'):
  """Returns the tokens of a turn's prompt, and how many were cached."""
  answer = server.chat(text, owner, session=session, max_tokens=8, seed=None)
  return answer['usage']['prompt_tokens'], running.cached(answer)


def talk(server, *owners, **options):
  """Returns a new session of each owner, in which they have said something."""
  found = [server.open_session(owner, **options) for owner in owners]
  for owner, session in zip(owners, found):
    say(server, owner, session)
  return found


def make_card(server, owner='ann', public=False, to=None, **changes):
  return server.publish(CARD | changes, owner, public, to)['id']


def tree(server):
  return server.engine.decoder.account.tree


def restored(server):
  return server.context.points.restored


def test_a_restart_keeps_what_was_cached(start, tmp_path):
  """Of public and private characters; hits before beside hits after."""
  with start() as server:
    sessions = {
      ('ann', 0): server.open_session(),
      ('ben', 0): server.open_session('ben'),
      ('ann', 1): server.open_session(character=make_card(server)),
    }
    for _ in range(2):
      for (owner, _), session in sessions.items():
        say(server, owner, session)
    before = [say(server, o, x) for (o, _), x in sessions.items()]
    assert restored(server).points == 0
    digest = server.store.version(running.CHARACTER, 1).digest
  kept = listed(tmp_path)
  assert len(kept) == 5  # Two prefixes and three conversations.
  with start() as server:
    assert restored(server).points > 5
    after = [say(server, o, x) for (o, _), x in sessions.items()]
    hits = [
      sum(cached for _, cached in x) / sum(prompt for prompt, _ in x)
      for x in (before, after)
    ]
    assert hits[1] >= 0.98 * hits[0] > 0.8
    assert saved_device.labels(server.engine.decoder.account)
  assert listed(tmp_path) == kept
  # Names tell nothing, and only the server reads the files.
  told = 'ann', digest, running.CHARACTER, *sessions.values()
  assert not any(word in name for word in told for name in kept)
  folder = tmp_path / 'points'
  assert folder.stat().st_mode & 0o777 == 0o700
  assert {x.stat().st_mode & 0o777 for x in folder.glob('*.points')} == {0o600}


def test_without_the_flag_only_public_prefixes_are_kept(start, tmp_path):
  with start() as server:
    (mine,) = talk(server, 'ann', character=make_card(server))
    (theirs,) = talk(server, 'ben')
  assert len(listed(tmp_path)) == 4
  with start('public') as server:
    assert restored(server)[:2] == (1, 3)
    assert say(server, 'ann', mine)[1] == 0
    _, cached = say(server, 'ben', theirs)
    assert 0 < cached <= server.prefix_length
  # What is private was removed, and is not saved again.
  (name,) = listed(tmp_path)
  assert name.startswith('shared-prefix-')


def hide(server, card, moderator):
  make_card(server, to=card)


def publish_another_text(server, card, moderator):
  make_card(server, public=True, to=card, scenario='A storm.')


def roll_back(server, card, moderator):
  server.ask('POST', f'/v1/characters/{card}/rollback', {'version': 1}, 'ann')


def remove(server, card, moderator):
  server.ask('DELETE', f'/v1/characters/{card}', owner='ann')


def block(server, card, moderator):
  """A newer gate blocks it, which the next listing finds."""
  moderator.version, moderator.also = 'second', 'blue'
  server.get('/v1/characters', owner='ben')


def list_saved(tmp_path):
  """Returns (owner, conversation, text of the longest point) of each file."""
  folder = saving.folder(tmp_path)
  found = []
  for path in folder.list():
    group = folder.read(path, 'root')
    text = max((bytes(x.tokens.tolist()) for x in group.points), key=len)
    name = group.name
    found.append((saved_points.owner_of(name), name.conversation, text))
  return found


@pytest.mark.parametrize('kind', ['public', 'all'])
@pytest.mark.parametrize(
  'change', [hide, publish_another_text, roll_back, remove, block]
)
def test_what_is_no_longer_everybodys_leaves_the_disk(
  start, tmp_path, change, kind
):
  """With the answer, and for good; readers' conversations go on."""
  moderator = moderated_cards.Moderator()
  text = b'paints boats'
  with start(kind, moderator=moderator) as server:
    card = make_card(server, public=True)
    if change is roll_back:
      make_card(server, to=card, tags=['other'])
      text = b'A storm'
      make_card(server, public=True, to=card, scenario='A storm.')
    owners = 'ann', 'ben'
    sessions = dict(zip(owners, talk(server, *owners, character=card)))
    server.context.points.save()
    assert any(not who and text in x for who, _, x in list_saved(tmp_path))
    files_before = (tmp_path / 'points').glob('*.points')
    before = {x.name: x.read_bytes() for x in files_before}
    _, cached = say(server, 'ben', sessions['ben'])

    def only_readers_have_it():
      """Or nobody, where conversations are not saved."""
      left = [x for x in list_saved(tmp_path) if text in x[2]]
      assert kind == 'all' or not left
      return {who for who, _, _ in left}

    change(server, card, moderator)
    assert only_readers_have_it() <= {'', 'ann', 'ben'}
    server.context.points.save()
    # What the former owner's next turn needs is hers alone.
    say(server, 'ann', sessions['ann'])
    _, again = say(server, 'ben', sessions['ben'])
    assert again > cached > 0
    server.context.points.save()
    kept = only_readers_have_it()
  for name, data in before.items():
    # As a kill between the store's change and the files' would leave it.
    path = tmp_path / 'points' / name
    if not path.exists():
      path.write_bytes(data)
  moderator = moderated_cards.Moderator()
  with start(kind, moderator=moderator) as server:
    if change is block:
      block(server, card, moderator)
    server.context.points.save()
    assert only_readers_have_it() == kept
    if kind == 'all':
      assert say(server, 'ben', sessions['ben'])[1] > again
    # With the last conversation that needs it, all of it is gone.
    if change is not remove:
      remove(server, card, moderator)
    for owner, session in sessions.items():
      server.ask('DELETE', f'/v1/sessions/{session}', owner=owner)
    for _ in range(2):
      assert not any(text in x for _, _, x in list_saved(tmp_path))
      server.context.points.save()
    texts = [bytes(nodes.tokens(x).tolist()) for x in tree(server).points()]
    assert not any(text in x for x in texts)


def remove_token(server, tmp_path):
  """Removes ann's token, as a command beside the server does."""
  (tmp_path / server_folder.KEY).write_bytes(saving.SECRET)
  server_folder.forget_owner(tmp_path, 'ann')  # Who has a token keeps files.
  assert len(listed(tmp_path)) == 5
  auth.Tokens(tmp_path / auth.FILE).revoke('ann')
  server_folder.forget_owner(tmp_path, 'ann')


@pytest.mark.parametrize(
  'how, left',
  [
    (['session'], {'', 'ann', 'ann talks', 'ben talks'}),
    (['session', 'character'], {'', 'ann talks', 'ben talks'}),
    (['character'], {'', 'ann talks', 'ben talks'}),
    (['character', 'turn', 'session'], {'', 'ann talks', 'ben talks'}),
    (['killed'], {'', 'ann', 'ann talks', 'ben talks'}),
    (['elsewhere'], {'', 'ann', 'ann talks', 'ben talks'}),
    (['token'], {'', 'ben talks'}),
  ],
  ids=lambda x: ' '.join(sorted(x)),
)
def test_what_is_removed_leaves_no_file(
  start, tmp_path, monkeypatch, caplog, how, left
):
  """With the answer, and for good; and others remove nothing."""

  def kept():
    found = [(who, talk) for who, talk, _ in list_saved(tmp_path)]
    assert len(set(found)) == len(found)
    return {who + ' talks' * bool(talk) for who, talk in found}

  def killed(owner, session):
    raise RuntimeError('killed')

  with start() as server:
    card = make_card(server)
    (session,) = talk(server, 'ann', character=card)
    talk(server, 'ann', 'ben')
    server.context.points.save()
    everything = listed(tmp_path)
    assert len(everything) == 5
    paths = {
      'session': f'/v1/sessions/{session}',
      'character': f'/v1/characters/{card}',
    }
    count = len(tree(server))
    for path in paths.values():
      assert server.refused('DELETE', path, owner='ben')[0] == 404
    assert listed(tmp_path) == everything and len(tree(server)) == count
    for what in how:
      if what in paths:
        server.ask('DELETE', paths[what], owner='ann')
      elif what == 'turn':  # The conversation goes on, and leaves nothing.
        say(server, 'ann', session)
      elif what == 'token':
        remove_token(server, tmp_path)
      elif what == 'elsewhere':
        server.context.points.stop()
        server.store.remove_session('ann', session)
      else:
        monkeypatch.setattr(server.store, 'remove_session', killed)
        found = server.refused('DELETE', paths['session'], owner='ann')
        assert found[0] == 500 and kept() == left
        server.context.points.stop()
        monkeypatch.undo()
        server.store.remove_session('ann', session)
    if what not in ('elsewhere', 'killed'):
      assert kept() == left
      server.context.points.save()
      assert kept() == left
  refused = int(what == 'elsewhere')
  with start() as server:
    assert restored(server).refused == refused
    assert ('its text was removed' in caplog.text) == bool(refused)
  # It has saved once more.
  assert kept() == left


def test_what_has_changed_is_written_again_and_nothing_else(start, tmp_path):
  with start() as server:
    (session,) = talk(server, 'ann')
    points, read = server.context.points, []
    for n in range(2):
      if n:
        say(server, 'ann', session)
      points.save()
      assert points.save() == 0
      folder = tmp_path / 'points'
      read.append([(folder / name).read_bytes() for name in listed(tmp_path)])
    kept = [x == y for x, y in zip(*read)]
    assert sorted(kept) == [False, True]
    # A prefix that twice as many ask for is worth more.
    (shared,) = folder.glob('shared-*')
    before = shared.read_bytes()
    talk(server, 'ben')
    points.save()
    assert shared.read_bytes() != before


def test_a_session_that_goes_while_it_is_written_is_not_written(
  start, tmp_path
):
  with start() as server:
    (session,) = talk(server, 'ann')
    points = server.context.points
    copied = points._copy

    def copy(one):
      data = copied(one)
      if one.name.conversation is not None:
        assert data
        server.ask('DELETE', f'/v1/sessions/{session}', owner='ann')
      return data

    points._copy = copy
    points.save()
    assert len(listed(tmp_path)) == 1


# What is wrong with files: what the next server has otherwise, and the reason.
DAMAGE = {
  'a byte': ({}, 'it is damaged'),
  'its end': ({}, 'it is damaged'),
  'empty': ({}, 'it is damaged'),
  'another key': ({'secret': b't' * 32}, 'the key of another server'),
  'another root': (
    {'root': 'other'},
    'another model, tokenizer, page size or kind',
  ),
  'another head': ({'judge': b'2'}, 'judged by another head, or by none'),
}


@pytest.mark.parametrize('what', DAMAGE)
def test_a_file_that_cannot_be_trusted_is_refused_by_name(
  start, tmp_path, caplog, what
):
  changes, reason = DAMAGE[what]
  with start() as server:
    (session,) = talk(server, 'ann')
  everything = listed(tmp_path)
  spoiled = [tmp_path / 'points' / x for x in everything if 'shared' not in x]
  for path in spoiled:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= what == 'a byte'
    path.write_bytes({'its end': data[:-1], 'empty': b''}.get(what, data))
  with caplog.at_level(logging.WARNING), start(**changes) as server:
    refused = everything if changes else [x.name for x in spoiled]
    assert restored(server).refused == len(refused)
    logged = [x for x in caplog.records if 'refused' in x.getMessage()]
    assert not any(x.exc_info for x in caplog.records)
    for name, record in zip(refused, logged, strict=True):
      assert name in record.getMessage() and reason in record.getMessage()
    cached = 0 if changes else server.prefix_length
    assert say(server, 'ann', session)[1] == cached
    server.context.points.save()
    # What was refused is written anew, or gone.
    folder = saving.folder(tmp_path, changes.get('secret', saving.SECRET))
    for path in folder.list():
      folder.read(path, changes.get('root', 'root'))


def test_texts_of_a_head_are_judged_by_what_it_gave_them(start, monkeypatch):
  """A prompt's scores are those of all its tokens, as without a restart."""
  found = []
  for is_restarted in False, True:
    with start(judge=b'1') as server:
      if not is_restarted:
        (session,) = talk(server, 'ann')
      recording.results(server.engine, 'submit', found, monkeypatch)
      assert say(server, 'ann', session)[1] > server.prefix_length
  assert len(found) == 2
  for one in found:
    tokens = one.text().tokens[: one.prompt]
    scores = [
      fake_device.scores(fake_device.appended(0, tokens[: n + 1]))
      for n in range(len(tokens))
    ]
    assert one.prompt_scores == pytest.approx(tuple(map(max, zip(*scores))))


def test_what_a_killed_server_left_half_written_is_removed(start, tmp_path):
  with start() as server:
    talk(server, 'ann')
  names = listed(tmp_path)
  half = tmp_path / 'points' / f'.{names[0]}.0123{files.PARTIAL}'
  half.write_bytes(b'half')
  with start() as server:
    assert restored(server).refused == 0
    assert trivial.until(lambda: not half.exists())


@contextlib.contextmanager
def moved_away(tmp_path):
  """Yields what brings the files back, which are away until then."""
  folder, away = tmp_path / 'points', tmp_path / 'away'
  folder.rename(away)
  folder.mkdir()

  def bring_back():
    for path in away.glob('*.points'):
      path.rename(folder / path.name)

  yield bring_back


def test_a_rolling_update_takes_over_what_the_first_server_saves_last(
  start, tmp_path
):
  """While another process has the folder, this one writes nothing."""
  with start() as server:
    (session,) = talk(server, 'ann')
  names = listed(tmp_path)
  with moved_away(tmp_path) as bring_back:
    # As another process: a lock belongs to the thread that took it.
    lock = locks.hold(
      tmp_path / 'points' / saved_points.LOCK, 'folder', 'saves', '--folder'
    )
    with lock_elsewhere(lock) as release, start(interval_s=0.01) as server:
      assert restored(server).points == 0
      talk(server, 'ben')
      assert not listed(tmp_path)
      bring_back()
      release()
      assert trivial.until(lambda: restored(server).points)
      assert say(server, 'ann', session)[1] > server.prefix_length
  assert len(listed(tmp_path)) == len(names) + 1


@contextlib.contextmanager
def lock_elsewhere(lock):
  """Holds a lock in another thread; yields what frees it."""
  with (
    futures.ThreadPoolExecutor(1) as thread,
    contextlib.ExitStack() as stack,
  ):
    thread.submit(stack.enter_context, lock).result()
    yield lambda: thread.submit(stack.close).result()
    thread.submit(stack.close).result()


def test_a_small_pool_and_a_small_folder_take_what_fits(start, tmp_path):
  with start() as server:
    talk(server, 'ann', 'ben')
    count = len(tree(server))
  with start(pages=280) as server:
    assert 0 < restored(server).points <= count
    assert any(not point.salt for point in tree(server).points())
  with start(most=saved_device.BYTES * 30) as server:
    pass
  size = sum(x.stat().st_size for x in (tmp_path / 'points').glob('*.points'))
  assert size < 2**20


def test_a_folder_that_cannot_be_written_to_stops_no_server(
  start, tmp_path, caplog, monkeypatch
):
  def full(*arguments):
    raise OSError(28, 'No space left on device')

  with start(interval_s=0.01) as server:
    monkeypatch.setattr(saved_points.Folder, 'write', full)
    (session,) = talk(server, 'ann')
    assert trivial.until(lambda: 'points could not be saved' in caplog.text)
    assert say(server, 'ann', session)[1] > 0
    monkeypatch.undo()
    assert trivial.until(lambda: len(listed(tmp_path)) == 2)


def test_what_a_full_disk_took_in_part_is_cut_back_and_written_later(
  start, tmp_path
):
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  folder = tmp_path / 'points'

  def contents():
    return {x.name: x.read_bytes() for x in folder.iterdir()}

  with start() as server:
    points = server.context.points
    (session,) = talk(server, 'ann')
    points.save()
    for size in (0, 1, 100, 1000, 2000):
      say(server, 'ann', session)
      before = contents()
      assert max(map(len, before.values())) > 2000
      resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
      try:
        with pytest.raises(OSError, match='writing'):
          points.save()
      finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
      assert contents() == before
      assert points.save() and contents() != before
      assert not points.save()


@pytest.mark.parametrize('is_reversed', [False, True])
def test_a_running_process_takes_conversations_behind_their_prefix(
  start, tmp_path, monkeypatch, is_reversed
):
  with start() as server:
    sessions = talk(server, 'ann', 'ben')
    count = len(tree(server))
  list_all = saved_points.Folder.list
  monkeypatch.setattr(
    saved_points.Folder,
    'list',
    lambda self: sorted(list_all(self), reverse=is_reversed),
  )
  with moved_away(tmp_path) as bring_back, start() as server:
    assert not len(tree(server))
    bring_back()
    assert server.context.points.restore().points == count == len(tree(server))
    for owner, session in zip(('ann', 'ben'), sessions):
      prompt, cached = say(server, owner, session)
      assert cached > prompt / 2
