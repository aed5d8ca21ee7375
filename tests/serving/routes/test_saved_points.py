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
from tests.serving import running
from tests.serving import trivial
from tests.serving import world
from tests.serving.routes import moderated_cards

SECRET = b's' * 32
CARD = {'name': 'Nell', 'description': 'Nell paints boats, all of them blue.'}


@pytest.fixture
def start(tmp_path):
  """Returns a function that starts a server with the same folder."""
  engines = []

  def start(
    kind='all',
    secret=SECRET,
    most=2**20,
    root='root',
    judge=None,
    interval_s=3600.0,
    pages=2000,
    **options,
  ):
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

    def points(worker, store):
      tokens = auth.Tokens(tmp_path / auth.FILE)
      return saved_points.SavedPoints(
        worker,
        saved_device.saving_of(worker.engine, root),
        saved_points.Folder(tmp_path / 'points', secret, 2**20),
        most=most,
        texts=saved_points.SavedTexts(store, tokens, kind == 'all'),
        interval_s=interval_s,
      )

    return running.server(tmp_path, engine=engine, points=points, **options)

  yield start
  assert not list(tmp_path.glob(f'**/.*{files.PARTIAL}'))
  for engine in engines:
    assert fake_device.is_empty(engine.decoder)


def listed(folder):
  return sorted(x.name for x in (folder / 'points').glob('*.points'))


def open_session(server, owner, character=running.CHARACTER):
  return server.post('/v1/sessions', owner, character=character)['id']


def make_card(server, owner, public=False, to=None, **changes):
  body = {'fields': CARD | changes, 'public': public}
  method, path = (
    ('PUT', f'/v1/characters/{to}') if to else ('POST', '/v1/characters')
  )
  return server.ask(method, path, body, owner)['id']


def say(server, owner, session, text='Good evening, is the lamp lit?'):
  """Returns the tokens of a turn's prompt, and how many were cached."""
  answer = server.post(
    '/v1/chat/completions',
    owner,
    model=running.MODEL,
    messages=[{'role': 'user', 'content': text}],
    session=session,
    max_tokens=8,
  )
  return answer['usage']['prompt_tokens'], answer['kaiju']['cached_tokens']


def test_a_restart_keeps_what_was_cached(start, tmp_path):
  """Of public and private characters; hits before beside hits after."""
  with start() as server:
    sessions = {
      ('ann', 0): open_session(server, 'ann'),
      ('ben', 0): open_session(server, 'ben'),
      ('ann', 1): open_session(server, 'ann', make_card(server, 'ann')),
    }
    for _ in range(2):
      for (owner, _), session in sessions.items():
        say(server, owner, session)
    before = [say(server, o, x) for (o, _), x in sessions.items()]
    assert server.context.points.restored.points == 0
  kept = listed(tmp_path)
  assert len(kept) == 5  # Two prefixes and three conversations.
  with start() as server:
    assert server.context.points.restored.points > 5
    after = [say(server, o, x) for (o, _), x in sessions.items()]
    hits = [
      sum(cached for _, cached in x) / sum(prompt for prompt, _ in x)
      for x in (before, after)
    ]
    assert hits[1] >= 0.98 * hits[0] > 0.8
    labels = saved_device.labels(server.engine.decoder.account)
    assert labels
  assert listed(tmp_path) == kept


def test_by_default_only_public_prefixes_are_kept(start, tmp_path):
  with start('public') as server:
    mine = open_session(server, 'ann', make_card(server, 'ann'))
    theirs = open_session(server, 'ben')
    for _ in range(2):
      say(server, 'ann', mine)
      say(server, 'ben', theirs)
  (name,) = listed(tmp_path)
  assert name.startswith('shared-prefix-')
  with start('public') as server:
    assert say(server, 'ann', mine)[1] == 0
    _, cached = say(server, 'ben', theirs)
    assert 0 < cached <= server.prefix_length


def test_without_the_flag_private_files_are_refused_and_removed(
  start, tmp_path
):
  with start() as server:
    say(server, 'ann', open_session(server, 'ann'))
  assert len(listed(tmp_path)) == 2
  with start('public') as server:
    assert server.context.points.restored[:2] == (1, 1)
  assert len(listed(tmp_path)) == 1


def hide(server, card, moderator):
  make_card(server, 'ann', False, card)


def publish_another_text(server, card, moderator):
  make_card(server, 'ann', True, card, scenario='A storm.')


def roll_back(server, card, moderator):
  server.ask('POST', f'/v1/characters/{card}/rollback', {'version': 1}, 'ann')


def remove(server, card, moderator):
  server.ask('DELETE', f'/v1/characters/{card}', owner='ann')


def block(server, card, moderator):
  """A newer gate blocks it, which the next listing finds."""
  moderator.version, moderator.also = 'second', 'blue'
  server.get('/v1/characters', owner='ben')


CHANGES_OF_A_CARD = hide, publish_another_text, roll_back, remove, block


def list_saved(tmp_path):
  """Returns (owner, conversation, text of the longest point) of each file."""
  folder = saved_points.Folder(tmp_path / 'points', SECRET, 2**20)
  found = []
  for path in folder.list():
    group = folder.read(path, 'root')
    text = max((bytes(x.tokens.tolist()) for x in group.points), key=len)
    name = group.name
    found.append((saved_points.owner_of(name), name.conversation, text))
  return found


@pytest.mark.parametrize('kind', ['public', 'all'])
@pytest.mark.parametrize('change', CHANGES_OF_A_CARD)
def test_what_is_no_longer_everybodys_leaves_the_disk(
  start, tmp_path, change, kind
):
  """With the answer, and for good; readers' conversations go on."""
  moderator = moderated_cards.Moderator()
  text = b'paints boats'
  with start(kind, moderator=moderator) as server:
    card = make_card(server, 'ann', True)
    if change is roll_back:
      make_card(server, 'ann', False, card, tags=['other'])
      text = b'A storm'
      make_card(server, 'ann', True, card, scenario='A storm.')
    sessions = {x: open_session(server, x, card) for x in ('ann', 'ben')}
    for owner, session in sessions.items():
      say(server, owner, session)
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
    tree = server.engine.decoder.account.tree
    texts = [bytes(nodes.tokens(x).tolist()) for x in tree.points()]
    assert not any(text in x for x in texts)


def test_a_removed_session_is_gone_before_the_answer(start, tmp_path):
  with start() as server:
    sessions = [open_session(server, x) for x in ('ann', 'ann', 'ben')]
    for owner, session in zip(('ann', 'ann', 'ben'), sessions):
      say(server, owner, session)
      say(server, owner, session)
    server.context.points.save()
    before = listed(tmp_path)
    assert len(before) == 4
    server.ask('DELETE', f'/v1/sessions/{sessions[0]}', owner='ann')
    after = listed(tmp_path)
    assert len(after) == 3 and set(after) < set(before)
    names = {one.name.conversation for one in selected(server)}
    assert names == {None, *sessions[1:]}
    server.context.points.save()
    assert listed(tmp_path) == after
  with start() as server:
    assert {one.name.conversation for one in selected(server)} == names


def selected(server):
  points = server.context.points
  return points._worker.ask(
    lambda: points._saving.select(10**9, lambda name: True)
  )


def test_a_kill_before_the_store_removes_a_session_leaves_no_file(
  start, tmp_path, monkeypatch
):
  def killed(owner, session):
    raise RuntimeError('killed')

  with start() as server:
    session = open_session(server, 'ann')
    say(server, 'ann', session)
    server.context.points.save()
    monkeypatch.setattr(server.store, 'remove_session', killed)
    with pytest.raises(Exception, match='500'):
      server.ask('DELETE', f'/v1/sessions/{session}', owner='ann')
    (name,) = listed(tmp_path)
    assert name.startswith('shared-')


def test_what_has_changed_is_written_again_and_nothing_else(start, tmp_path):
  with start() as server:
    session = open_session(server, 'ann')
    points, read = server.context.points, []
    for _ in range(2):
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
    say(server, 'ben', open_session(server, 'ben'))
    points.save()
    assert shared.read_bytes() != before


def test_others_cannot_remove_what_is_saved(start, tmp_path):
  with start() as server:
    session = open_session(server, 'ann')
    card = make_card(server, 'ann')
    say(server, 'ann', session)
    say(server, 'ann', open_session(server, 'ann', card))
    server.context.points.save()
    before = listed(tmp_path)
    count = len(server.engine.decoder.account.tree)
    for path in f'sessions/{session}', f'characters/{card}':
      with pytest.raises(Exception, match=r'40[34]'):
        server.ask('DELETE', f'/v1/{path}', owner='ben')
    assert listed(tmp_path) == before
    assert len(server.engine.decoder.account.tree) == count


@pytest.mark.parametrize('first', ['session', 'character'])
def test_a_removed_private_character_leaves_nothing(start, tmp_path, first):
  """Whether its last session goes before it or after it."""
  with start() as server:
    say(server, 'ben', open_session(server, 'ben'))
    card = make_card(server, 'ann')
    session = open_session(server, 'ann', card)
    say(server, 'ann', session)
    server.context.points.save()
    assert len(listed(tmp_path)) == 4
    paths = [f'sessions/{session}', f'characters/{card}']
    for path in paths if first == 'session' else paths[::-1]:
      server.ask('DELETE', f'/v1/{path}', owner='ann')
      if first == 'character':
        first = ''
        # The conversation goes on, and leaves nothing on the disk.
        say(server, 'ann', session)
        server.context.points.save()
        assert len(listed(tmp_path)) == 2
    assert len(listed(tmp_path)) == 2
    names = [one.name for one in selected(server)]
    assert {saved_points.owner_of(name) for name in names} == {'', 'ben'}
    server.context.points.save()
    assert len(listed(tmp_path)) == 2


def test_a_session_that_goes_while_it_is_written_is_not_written(
  start, tmp_path
):
  with start() as server:
    session = open_session(server, 'ann')
    say(server, 'ann', session)
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


def test_a_session_that_another_server_removed_is_not_taken_back(
  start, tmp_path, caplog
):
  with start() as server:
    session = open_session(server, 'ann')
    say(server, 'ann', session)
    store = server.store
    server.context.points.save()
    assert len(listed(tmp_path)) == 2
    server.context.points.stop()
    store.remove_session('ann', session)
  assert len(listed(tmp_path)) == 2
  with start() as server:
    assert server.context.points.restored[:2] == (1, 1)
    assert len(server.engine.decoder.account.tree) == 1
    server.context.points.save()
    assert len(listed(tmp_path)) == 1
  assert 'its text was removed' in caplog.text


def test_who_has_no_token_any_more_has_no_files(start, tmp_path):
  with start() as server:
    for owner in 'ann', 'ben':
      card = make_card(server, owner)
      say(server, owner, open_session(server, owner, card))
    server.context.points.save()
    assert len(listed(tmp_path)) == 4
    tokens = auth.Tokens(tmp_path / auth.FILE)
    (tmp_path / server_folder.KEY).write_bytes(SECRET)
    for owner, left in ('ben', 4), ('ann', 2):
      if owner == 'ann':
        tokens.revoke(owner)
      server_folder.forget_owner(tmp_path, owner)
      assert len(listed(tmp_path)) == left
    server.context.points.save()
    assert len(listed(tmp_path)) == 2


CHANGES = {
  'a byte': ({}, 'it is damaged'),
  'its end': ({}, 'it is damaged'),
  'empty': ({}, 'it is damaged'),
  'another key': ({'secret': b't' * 32}, 'the key of another server'),
  'another root': ({'root': 'other'}, 'another model, tokenizer, or kind'),
  'another head': ({'judge': b'2'}, 'judged by another head, or by none'),
}


@pytest.mark.parametrize('what', CHANGES)
def test_a_file_that_cannot_be_trusted_is_refused_by_name(
  start, tmp_path, caplog, what
):
  changes, reason = CHANGES[what]
  with start() as server:
    session = open_session(server, 'ann')
    say(server, 'ann', session)
  names = listed(tmp_path)
  spoiled = [tmp_path / 'points' / x for x in names if 'shared' not in x]
  for path in spoiled:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= what == 'a byte'
    path.write_bytes({'its end': data[:-1], 'empty': b''}.get(what, data))
  with caplog.at_level(logging.WARNING), start(**changes) as server:
    refused = names if changes else [x.name for x in spoiled]
    assert server.context.points.restored.refused == len(refused)
    lines = [
      x.getMessage() for x in caplog.records if 'refused' in x.getMessage()
    ]
    assert [x for x in lines if reason in x] == lines
    assert [name in line for name, line in zip(refused, lines)] == [
      True for _ in refused
    ]
    assert not any(x.exc_info for x in caplog.records)
    assert say(server, 'ann', session)[1] == (
      0 if changes else server.prefix_length
    )
    server.context.points.save()
    # What was refused is written anew, or gone.
    folder = saved_points.Folder(
      tmp_path / 'points', changes.get('secret', SECRET), 2**20
    )
    for path in folder.list():
      folder.read(path, changes.get('root', 'root'))


def test_texts_of_a_head_are_judged_by_what_it_gave_them(start):
  """A prompt's scores are those of all its tokens, as without a restart."""
  found = []
  for _ in range(2):
    with start(judge=b'1') as server:
      if not found:
        session = open_session(server, 'ann')
        say(server, 'ann', session)
      submitted = server.engine.submit

      def submit(*arguments, submitted=submitted):
        found.append(submitted(*arguments))
        return found[-1]

      server.engine.submit = submit
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
    say(server, 'ann', open_session(server, 'ann'))
  names = listed(tmp_path)
  half = tmp_path / 'points' / f'.{names[0]}.0123{files.PARTIAL}'
  half.write_bytes(b'half')
  with start() as server:
    assert server.context.points.restored.refused == 0
    assert trivial.until(lambda: not half.exists())


def test_a_rolling_update_takes_over_what_the_first_server_saves_last(
  start, tmp_path
):
  """While another process has the folder, this one writes nothing."""
  folder, away = tmp_path / 'points', tmp_path / 'away'
  with start() as server:
    session = open_session(server, 'ann')
    say(server, 'ann', session)
  names = listed(tmp_path)
  folder.rename(away)
  folder.mkdir()
  # As another process: a lock belongs to the thread that took it.
  lock = locks.hold(folder / saved_points.LOCK, 'folder', 'saves', '--folder')
  with lock_elsewhere(lock) as release, start(interval_s=0.01) as server:
    points = server.context.points
    assert points.restored.points == 0
    say(server, 'ben', open_session(server, 'ben'))
    assert not listed(tmp_path)
    for path in away.glob('*.points'):
      path.rename(folder / path.name)
    release()
    assert trivial.until(lambda: points.restored.points)
    assert say(server, 'ann', session)[1] > server.prefix_length
  assert len(listed(tmp_path)) == len(names) + 1


@contextlib.contextmanager
def lock_elsewhere(lock):
  """Holds a lock in another thread; yields what frees it."""
  with futures.ThreadPoolExecutor(1) as thread:
    thread.submit(lock.__enter__).result()
    freed = []

    def release():
      freed.append(thread.submit(lock.__exit__, None, None, None).result())

    try:
      yield release
    finally:
      if not freed:
        release()


def test_a_small_pool_and_a_small_folder_take_what_fits(start, tmp_path):
  with start() as server:
    for owner in 'ann', 'ben':
      session = open_session(server, owner)
      say(server, owner, session)
    count = len(server.engine.decoder.account.tree)
  with start(pages=280) as server:
    tree = server.engine.decoder.account.tree
    assert 0 < server.context.points.restored.points <= count
    assert any(not point.salt for point in tree.points())
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
    session = open_session(server, 'ann')
    say(server, 'ann', session)
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
    session = open_session(server, 'ann')
    say(server, 'ann', session)
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
    sessions = [open_session(server, owner) for owner in ('ann', 'ben')]
    for owner, session in zip(('ann', 'ben'), sessions):
      say(server, owner, session)
    count = len(server.engine.decoder.account.tree)
  folder, away = tmp_path / 'points', tmp_path / 'away'
  folder.rename(away)
  list_all = saved_points.Folder.list
  with start() as server:
    assert not len(server.engine.decoder.account.tree)
    for path in away.glob('*.points'):
      path.rename(folder / path.name)
    monkeypatch.setattr(
      saved_points.Folder,
      'list',
      lambda self: sorted(list_all(self), reverse=is_reversed),
    )
    assert server.context.points.restore().points == count
    assert len(server.engine.decoder.account.tree) == count
    for owner, session in zip(('ann', 'ben'), sessions):
      prompt, cached = say(server, owner, session)
      assert cached > prompt / 2


def test_names_of_files_tell_nothing_and_are_private(start, tmp_path):
  with start() as server:
    session = open_session(server, 'ann')
    say(server, 'ann', session)
    digest = server.store.version(running.CHARACTER, 1).digest
  folder = tmp_path / 'points'
  assert folder.stat().st_mode & 0o777 == 0o700
  for path in folder.glob('*.points'):
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(
      x in path.name for x in ('ann', session, digest, running.CHARACTER)
    )
