"""Points that leave an engine, and come back into another one.

Most tests need no model: `fake_device` says what each text draws, and each
page's bytes name the text that it holds.
"""

import numpy as np
import pytest

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.pages import groups
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.requests import request as request_lib
from tests.decoding import fake_device
from tests.decoding import saved_device
from tests.decoding.engine import talks


def going_on(engine, tokens, owner='ann', conversation='c', salt=talks.SALT):
  """Returns how many tokens a next turn resumes."""
  tokens = [*tokens, *talks.text(99, 5)]
  options = dict(
    shared=talks.SHARED, cache_salt=salt, conversation=conversation
  )
  return talks.run(engine, tokens, owner=owner, **options).reused


def carry(source, target, most=10**9, is_wanted=lambda name: True):
  """Carries points between engines; returns how many are in the second."""
  saved = saved_device.save(saved_device.saving_of(source), most, is_wanted)
  taken = saved_device.saving_of(target)
  count = taken.adopt(groups.parse(x, 'root') for x in saved)
  saved_device.check(target.decoder.account, taken._copies.written)
  return count


def test_a_next_turn_resumes_what_the_engine_that_never_stopped_resumes(
  engines,
):
  one, other = engines(), engines()
  tokens = talks.talk(one)
  count = len(one.decoder.account.tree)
  assert carry(one, other) == count == len(other.decoder.account.tree)
  # The token that was drawn last did not run.
  assert going_on(other, tokens) == going_on(one, tokens) == len(tokens) - 1


def test_restored_twice_is_restored_once(engines):
  one, other = engines(), engines()
  talks.talk(one), talks.talk(one, 'ben')
  held = []
  for _ in range(2):
    assert carry(one, other) == len(one.decoder.account.tree)
    pages = other.decoder.account.pages
    held.append([pages.count_held(kind) for kind in pages.kinds])
  assert held[0] == held[1]
  assert len(other.decoder.account.tree) == len(one.decoder.account.tree)


def test_a_page_is_written_once_and_a_prefix_page_in_the_prefix_alone(engines):
  one = engines()
  for conversation in 'cd':
    talks.talk(one, conversation=conversation)
  talks.talk(one, 'ben')
  saved = [
    groups.parse(x, 'root')
    for x in saved_device.save(saved_device.saving_of(one))
  ]
  assert [x.name.conversation for x in saved] == [None, 'c', 'd', 'c']
  account = one.decoder.account
  for kind in 'global', 'local':
    labels = [row.tobytes() for x in saved for row in x.pages[kind]]
    assert len(labels) == len(set(labels))
    points = {
      page
      for point in account.tree.points()
      for page in account.tree.held_pages(point)[kind].values()
    }
    # The prefix ends within a page, in which the first conversation went on.
    assert len(labels) == len(points) + (kind == 'global')
  for kind, places in saved[0].points[0].places.items():
    last = saved[0].pages[kind][places[talks.SHARED // 4]].view(np.uint32)
    assert last[: talks.SHARED % 4].all() and not last[talks.SHARED % 4 :].any()


@pytest.mark.parametrize(
  'owner, salt, is_public, reused',
  [
    ('ben', talks.SALT, False, talks.SHARED),
    ('ann', 'c' * 64, False, 0),
    ('ann', talks.SALT, True, talks.SHARED),
  ],
  ids=['another owner', 'another salt', 'only the prefix is wanted'],
)
def test_what_is_anothers_or_not_wanted_is_not_resumed(
  engines, owner, salt, is_public, reused
):
  one, other = engines(), engines()
  tokens = talks.talk(one)
  count = carry(
    one,
    other,
    is_wanted=lambda x: not is_public or x.conversation is None,
  )
  assert (count == 1) == is_public
  assert going_on(other, tokens, owner, salt=salt) == reused


def test_a_text_without_a_conversation_is_never_saved(engines):
  one, other = engines(), engines()
  talks.run(one, talks.text(1, 30), owner='ann')
  assert carry(one, other) == 0


def test_a_conversation_goes_on_as_one(engines):
  """Its former points are dropped with its next turn, as without a restart."""
  one, other = engines(), engines()
  tokens = talks.talk(one)
  carry(one, other)
  for engine in one, other:
    going_on(engine, tokens)
  trees = [
    sorted(nodes.tokens(x).tolist() for x in y.decoder.account.tree.points())
    for y in (one, other)
  ]
  assert trees[0] == trees[1]


def test_a_removed_conversation_leaves_nothing_and_its_prefix_stays(engines):
  one, other = engines(), engines()
  tokens, theirs = talks.talk(one), talks.talk(one, 'ben')
  carry(one, other)
  for engine in one, other:
    engine.recorder.remove((b'ann', 'c'))
    names = {
      x.name
      for x in saved_device.saving_of(engine).select(10**9, lambda name: True)
    }
    assert {name.owner for name in names} == {b'', b'ben'}
    assert going_on(engine, theirs, 'ben') == len(theirs) - 1
    assert going_on(engine, tokens) == talks.SHARED


def test_a_reply_that_outlives_its_conversation_leaves_the_prefix(engines):
  engine = engines()
  one = engine.submit(
    request_lib.Request(
      talks.text(0, 30),
      6,
      owner='ann',
      conversation='c',
      shared=talks.SHARED,
      cache_salt=talks.SALT,
    )
  )
  while not one.events:
    engine.advance()
  engine.recorder.remove((b'ann', 'c'))
  while one.reason is None:
    engine.advance()
  (point,) = engine.decoder.account.tree.points()
  assert point.length == talks.SHARED


@pytest.mark.parametrize('when', ['before its prefix has run', 'as it draws'])
def test_what_runs_while_its_tree_is_dropped_leaves_nothing(engines, when):
  """And whatever else runs, or comes later, leaves all of its points."""
  engine = engines()

  def submit(owner, salt):
    options = dict(owner=owner, conversation='c', shared=talks.SHARED)
    return engine.submit(
      request_lib.Request(talks.text(0, 30), 6, cache_salt=salt, **options)
    )

  def count(salt):
    points = engine.decoder.account.tree.points()
    return sum(nodes.root(x).salt == salt.encode() for x in points)

  running = [submit(*x) for x in (('ben', 'c' * 64), ('ann', talks.SALT))]
  engine.advance()
  while when == 'as it draws' and not all(one.events for one in running):
    engine.advance()
  assert count('c' * 64) and (when != 'as it draws') == (not count(talks.SALT))
  forgetting.forget(engine, forgetting.Forget(salts=(talks.SALT,)))
  assert not count(talks.SALT)
  while running[0].reason is None or running[1].reason is None:
    engine.advance()
  assert not count(talks.SALT)
  later = submit('cid', talks.SALT)
  assert count('c' * 64) == 3
  while later.reason is None:
    engine.advance()
  assert count(talks.SALT) == 3
  assert {x.salt for x in engine.decoder.account.tree.points()} == {
    b'',
    b'ben',
    b'cid',
  }


def test_a_request_that_fails_leaves_nothing(engines):
  one = talks.run(
    engines(bad=1), talks.text(0, 30), owner='ann', conversation='c'
  )
  assert one.reason == 'error'


def test_a_conversation_waits_for_its_prefix_whatever_that_is_worth(engines):
  one, other = engines(), engines()
  talks.talk(one)
  prefix, ours = (
    groups.parse(x, 'root')
    for x in saved_device.save(saved_device.saving_of(one))
  )
  points = [x._replace(worth=0.0) for x in prefix.points]
  found = [ours, prefix._replace(points=tuple(points))]
  count = saved_device.saving_of(other).adopt(found)
  assert count == len(one.decoder.account.tree)


def test_points_that_are_there_keep_the_demand_for_them(engines):
  one = engines()
  talks.talk(one)
  now = [1000.0]
  found = saved_device.saving_of(one, clock=lambda: now[0])
  saved = saved_device.save(found)
  now[0] += 3600
  found.adopt(groups.parse(x, 'root') for x in saved)
  policy = one.decoder.account.policy
  assert all(
    policy.demand(x).idle < 1800 for x in one.decoder.account.tree.points()
  )


def test_too_small_a_pool_takes_prefixes_and_what_is_worth_most(engines):
  one = engines()
  texts = {owner: talks.talk(one, owner) for owner in ('ann', 'ben', 'cid')}
  worth = one.decoder.account.policy.worth
  ranked = sorted(one.decoder.account.tree.points(), key=worth, reverse=True)
  best = next(x.salt.decode() for x in ranked if x.salt)
  other = engines(pages=32)
  count = carry(one, other)
  assert 1 < count < len(ranked)
  account = other.decoder.account
  assert min(account.pages.free(x) for x in ('global', 'local')) < 6
  assert any(x.salt == b'' for x in account.tree.points())
  whole = [
    x
    for x in texts
    if any(
      point.salt.decode() == x and point.length == len(texts[x]) - 1
      for point in account.tree.points()
    )
  ]
  assert best in whole and len(whole) < 3


def test_the_most_bytes_are_kept_and_leave_what_is_worth_least(engines):
  one = engines()
  for owner in 'ann', 'ben', 'cid':
    talks.talk(one, owner)
  found = saved_device.saving_of(one)
  before = -1
  for most in (0, 16, 100, 300, 500, 10**9):
    selected = found.select(most, lambda name: True)
    pages = sum(len(x) for one in selected for x in one.pages.values())
    assert pages * saved_device.BYTES <= most
    count = len({point for one in selected for point in one.points})
    assert count >= before
    before = count
  assert before == len(one.decoder.account.tree)


def test_rows_that_run_lose_nothing_to_points_that_come_back(engines):
  one, other = engines(), engines(pages=48)
  for owner in 'ann', 'ben', 'cid':
    talks.talk(one, owner)
  running = [
    other.submit(request_lib.Request(talks.text(seed, 20), 12, owner=f'{seed}'))
    for seed in range(3)
  ]
  other.advance()
  carry(one, other)
  while not other.is_idle:
    other.advance()
  for sequence in running:
    drawn = sequence.result().tokens.tolist()
    assert (drawn, sequence.reason) == fake_device.expected(sequence.request)


def test_points_keep_their_age_and_grow_older_while_nobody_runs(engines):
  one, other = engines(), engines()
  talks.talk(one)
  now = [1000.0]
  clock = lambda: now[0]  # noqa: E731
  saved = saved_device.save(saved_device.saving_of(one, clock=clock))
  now[0] += 3600
  taken = saved_device.saving_of(other, clock=clock)
  taken.adopt(groups.parse(x, 'root') for x in saved)
  policies = [x.decoder.account.policy for x in (one, other)]
  for first, second in zip(
    *(
      sorted(x.decoder.account.tree.points(), key=lambda one: one.length)
      for x in (one, other)
    )
  ):
    was, now_is = policies[0].demand(first), policies[1].demand(second)
    assert now_is.begun == was.begun
    assert now_is.idle > 3599 and now_is.age >= now_is.idle


def test_other_roots_forms_and_heads_are_refused_by_name(engines):
  one, other = engines(is_judged=True), engines()
  talks.talk(one)
  saved = saved_device.save(saved_device.saving_of(one))
  with pytest.raises(ValueError, match='another model, tokenizer'):
    groups.parse(saved[0], 'other root')
  changed = saved[0].replace(b'"form": 1', b'"form": 9')
  with pytest.raises(ValueError, match='the form 9, and this version reads 1'):
    groups.parse(changed, 'root')
  with pytest.raises(ValueError, match='holds no points'):
    groups.parse(b'nothing', 'root')
  found = [groups.parse(x, 'root') for x in saved]
  with pytest.raises(ValueError, match='root other: must be root'):
    saved_device.saving_of(one).adopt([found[0]._replace(root='other')])
  with pytest.raises(ValueError, match='another head, or by none'):
    saved_device.saving_of(other).adopt(found)
  judged = engines(is_judged=True)
  judged.judge.version = b'2'
  with pytest.raises(ValueError, match='another head, or by none'):
    saved_device.saving_of(judged).adopt(found)
  for engine in other, judged:
    assert not len(engine.decoder.account.tree)


def test_after_a_change_of_the_model_nothing_is_saved_or_taken_back(engines):
  one, other = engines(), engines()
  talks.talk(one)
  saved = saved_device.save(saved_device.saving_of(one))
  found = [saved_device.saving_of(x) for x in (one, other)]
  one.decoder.replaced = other.decoder.replaced = 1
  assert saved and not saved_device.save(found[0])
  with pytest.raises(ValueError, match='model was replaced'):
    found[1].adopt(groups.parse(x, 'root') for x in saved)


def test_scores_come_back_with_their_texts(engines):
  one, other = engines(is_judged=True), engines(is_judged=True)
  tokens = talks.talk(one)
  assert carry(one, other) == len(one.decoder.account.tree)
  tokens += talks.text(99, 5).tolist()
  options = dict(
    owner='ann', conversation='c', shared=talks.SHARED, cache_salt=talks.SALT
  )
  first, second = (talks.run(x, tokens, **options) for x in (one, other))
  assert second.reused == first.reused > talks.SHARED
  # The largest of all tokens', the resumed ones among them.
  scores = []
  for end in range(1, len(tokens) + 1):
    scores.append(fake_device.scores(fake_device.appended(0, tokens[:end])))
  assert second.prompt_scores == first.prompt_scores
  np.testing.assert_array_equal(
    np.float32(second.prompt_scores), np.max(np.float32(scores), axis=0)
  )


def test_a_point_whose_scores_are_not_read_is_not_saved(engines):
  engine = engines(is_judged=True)
  talks.talk(engine)
  tree = engine.decoder.account.tree
  (public,) = (x for x in tree.points() if not x.salt)
  public.node.score_SC[1, 1] = np.nan
  assert not saved_device.save(saved_device.saving_of(engine))


def test_where_writing_fails_nothing_is_taken_back(engines):
  one, other = engines(), engines()
  talks.talk(one)
  saved = saved_device.save(saved_device.saving_of(one))
  taken = saved_device.saving_of(other)

  def fail(pages, data):
    raise RuntimeError('planted')

  taken._copies.put = fail
  with pytest.raises(RuntimeError, match='planted'):
    taken.adopt(groups.parse(x, 'root') for x in saved)
  pages = other.decoder.account.pages
  assert not len(other.decoder.account.tree)
  assert not any(pages.count_held(kind) for kind in pages.kinds)


@pytest.mark.parametrize('sinks', [0, 6])
def test_any_life_before_and_after_a_restart_is_as_without_one(engines, sinks):
  """Random turns, swipes, cancels and removals, in pools that are tight."""
  rng = np.random.default_rng(5)
  own = {'is_judged': True, 'sinks': sinks}
  engine, texts = engines(pages=64, **own), {}
  reused = 0
  for step in range(120):
    owner, name = 'ab'[rng.integers(2)], 'cd'[rng.integers(2)]
    before = texts.get((owner, name), talks.text(0, talks.SHARED).tolist())
    choice = rng.random()
    if choice < 0.1:
      engine.recorder.remove((owner.encode(), name))
      texts.pop((owner, name), None)
    elif choice < 0.2:
      other = engines(pages=int(rng.choice([40, 64])), **own)
      carry(engine, other, int(rng.choice([400, 10**9])))
      engine = other
    else:
      prompt = [*before, *talks.text(step, 1 + rng.integers(9)).tolist()][-50:]
      options = dict(shared=0, cache_salt=talks.SALT)
      if len(prompt) < 50:
        options['shared'] = talks.SHARED
      one = engine.submit(
        request_lib.Request(
          np.array(prompt), 6, owner=owner, conversation=name, **options
        )
      )
      while one.reason is None:
        engine.advance()
        if choice < 0.3 and one.events:
          engine.cancel(one)
      reused += one.reused
      if choice > 0.4:
        texts[owner, name] = one.text().tokens.tolist()
      if choice > 0.3:
        drawn = one.result().tokens.tolist(), one.reason
        assert drawn == fake_device.expected(one.request)
  assert reused > 500
