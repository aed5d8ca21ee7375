"""Rounds of an engine over a device that only counts (`test_lives.py`): who
waits, who is refused, what is resumed, and what a round costs."""

import dataclasses
import time

import numpy as np
import pytest

from kaiju_jax.data import tokenizer
from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.engine import generator
from kaiju_jax.decoding.engine import inflight
from kaiju_jax.decoding.engine import schedule
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.pages import pages
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests.decoding import fake_device
from tests.decoding import fake_engine

make_request = fake_engine.make_request
is_expected, is_judged = fake_engine.is_expected, fake_engine.is_judged


def test_what_nobody_reads_is_cancelled_within_two_rounds(make):
  clock = fake_engine.Clock()
  limits = admission.Limits(lease=10.0)
  engine = make(rows=2, clock=clock, limits=limits)
  one, other = (engine.submit(make_request(5, 40, x)) for x in range(2))
  waits = engine.submit(make_request(5, 40, 2))
  for _ in range(6):
    clock.now += 2.0
    engine.read(other)
    engine.advance()
  assert one.reason == waits.reason == 'cancelled'
  assert other.reason is None
  assert engine.decoder.account.free == 1


def test_who_waits_for_a_token_reads_all_the_time(make):
  """A lease is shorter than the wait for a row."""
  clock = fake_engine.Clock()
  engine = make(rows=1, clock=clock, limits=admission.Limits(lease=10.0))
  first = engine.submit(make_request(5, 40, 1))
  waits = generator.Stream(engine, engine.submit(make_request(5, 3, 2)))
  advance = engine.advance

  def slowly():
    clock.now += 1.0
    engine.read(first)
    advance()

  engine.advance = slowly
  tokens = [event.token for event in waits]
  assert tokens == fake_device.expected(waits._sequence.request)[0]
  assert is_expected(first)


def test_a_full_queue_refuses_and_says_for_how_long(make):
  clock = fake_engine.Clock()
  engine = make(rows=1, clock=clock, limits=admission.Limits(queue=2))
  advance, taken = engine.rounds.step, []

  def step(rows):
    clock.now += 0.5
    taken.append(rows)
    return advance(rows)

  engine.rounds.step = step
  first = engine.submit(make_request(5, 20, 1))
  for _ in range(4):
    engine.advance()
  several = [engine.submit(make_request(5, 10, x)) for x in (2, 3)]
  before = len(taken)
  with pytest.raises(request_lib.Busy, match='2 sequences wait') as busy:
    engine.submit(make_request(5, 10, 4))
  assert engine.load().waiting == 2 and engine.load().running == 1
  engine.run(first, *several)
  # Nobody ended early, so that the wait was what it was said to be.
  rounds = len(taken) - before
  assert busy.value.seconds == pytest.approx(0.5 * rounds, rel=0.3)
  engine.answer(make_request(5, 10, 4))


def test_a_long_wait_refuses_what_would_wait_and_nothing_else(make):
  clock = fake_engine.Clock()
  engine = make(rows=2, clock=clock, limits=admission.Limits(wait=2.5))
  step = engine.rounds.step

  def slow(rows):
    clock.now += 0.25
    return step(rows)

  engine.rounds.step = slow
  first = engine.submit(make_request(5, 30, 1))
  for _ in range(9):
    engine.advance()
  second = engine.submit(make_request(5, 30, 2))
  engine.advance()
  with pytest.raises(request_lib.Busy, match=r'5 s are allowed') as busy:
    engine.submit(make_request(5, 2, 3))
  assert 3.5 < busy.value.seconds < 6.0
  while first.tokens_left > 5:
    engine.advance()
  soon = engine.submit(make_request(5, 2, 3))
  came = clock.now
  while not soon.events:
    engine.advance()
  assert clock.now - came <= 2.5
  engine.run(first, second, soon)
  # A round that took very long: one that waits for nobody is not refused, or
  # nobody would ever find out that rounds are short again.
  engine.state.durations.step.mean = engine.state.durations.chunk.mean = 1e6
  engine.answer(make_request(60, 2, 4))
  assert engine.state.durations.step.mean < 1e6


def test_the_load_can_be_asked_while_others_hold_all_rows(make):
  engine = make(rows=2)
  held = [engine.decoder.open(8) for _ in range(2)]
  waits = engine.submit(make_request(5, 4))
  assert engine.load()[:3] == (1, 0, 5)
  with pytest.raises(pages.Full, match='all 2 rows are open'):
    engine.advance()
  for row in held:
    engine.decoder.close(row)
  engine.run(waits)
  assert is_expected(waits)


@pytest.mark.parametrize('ahead', [False, True])
def test_an_engine_that_drains_finishes_what_it_can(make, ahead):
  clock = fake_engine.Clock(0.1)
  engine = make(rows=2, clock=clock, ahead=ahead)
  short = [engine.submit(make_request(5, 6, x)) for x in range(2)]
  long = [engine.submit(make_request(5, 50, x)) for x in (2, 3, 4)]
  end = clock.now + 8.0
  rest = engine.drain(8.0)
  assert end <= clock.now <= end + 1.0
  assert all(map(is_expected, short))
  assert {one.number for one in rest} == {one.number for one in long}
  # What had begun can go on elsewhere, or here: it was recorded.
  begun = [one for one in long if one.is_begun]
  assert len(begun) == 2
  for one in begun:
    match = engine.decoder.account.tree.match(one.text())
    assert match.length >= one.length - 2
  assert engine.drain(20.0) == []


@pytest.mark.parametrize('ahead', [False, True])
def test_a_row_goes_to_the_higher_priority_and_comes_back(make, ahead):
  engine = make(rows=1, ahead=ahead)
  waits = engine.submit(make_request(5, 20, 1))
  low = engine.submit(make_request(5, 20, 2, priority=-1))
  engine.advance()
  assert waits.row is not None
  engine.run(waits)
  engine.advance()
  engine.advance()
  assert low.row is not None
  # It came before, and has as low a priority as what runs.
  other = engine.submit(make_request(5, 5, 4, priority=-1))
  high = engine.submit(make_request(5, 20, 3, priority=1))
  engine.run(high)
  assert low.reason is None and low.row is None and not other.is_begun
  engine.run(low, other)
  assert low.is_begun and all(map(is_expected, (waits, low, high, other)))
  # It went on where it was.
  assert low.reused == 0
  assert engine.rounds.ran <= 4 * 5 + 3


def test_what_no_longer_fits_waits_on(make, monkeypatch):
  """As where one that joins displaces what the next was to go on from."""
  engine = make(rows=4, counts=(16, 16))
  first, second = (engine.submit(make_request(30, 10, x)) for x in range(2))
  account = engine.decoder.account
  monkeypatch.setattr(
    account, 'needs', lambda *_: ({'global': 0, 'local': 0}, 0)
  )
  engine.advance()
  assert first.row is not None and second.row is None
  engine.run(first)
  assert not second.is_begun
  engine.run(second)
  assert is_expected(first) and is_expected(second)


def test_a_search_waits_for_the_pages_of_its_beams(make, monkeypatch):
  """It is not tried whether it fits: what it needs is known."""
  engine = make(rows=3, counts=(19, 14), extra=9)
  first = engine.submit(make_request(30, 10, 1))
  engine.advance()
  # Nine pages are left: enough for its text of 28, and not for 8 beyond it.
  one = engine.submit(make_request(20, 9, 2, guided=request_lib.Guide(1)))
  opened, open_row = [], engine.decoder.open
  monkeypatch.setattr(
    engine.decoder, 'open', lambda *x: (opened.append(x), open_row(*x))[1]
  )
  while first.reason is None:
    assert not opened
    engine.advance()
  engine.run(one)
  ((length, extra, _),) = opened
  assert (length, extra) == (29, 9)
  assert is_expected(one)


def test_running_is_not_waiting(make):
  """One that has run for long does not go before higher priorities."""
  clock = fake_engine.Clock()
  engine = make(rows=1, clock=clock)
  low = engine.submit(make_request(5, 30, 1))
  for _ in range(10):
    engine.advance()
    clock.now += 10.0
  high = [engine.submit(make_request(5, 9, 2, owner='a', priority=1))]
  engine.advance()
  engine.advance()
  assert low.row is None and high[0].row is not None
  high.append(engine.submit(make_request(5, 9, 3, owner='b', priority=1)))
  engine.run(high[1])
  assert low.reason is None
  engine.run(low)
  assert all(map(is_expected, (low, *high)))


def test_a_scored_prompt_that_was_parked_has_its_scores_once():
  one = sequence_lib.Sequence(
    1, make_request(9, 4, scores_prompt=True), np.arange(9), None
  )
  for begin, count in ((0, 4), (2, 4), (1, 3), (0, 9)):
    scores = sequence_lib.rounds.Scores(
      np.arange(begin, begin + count, dtype=np.float32),
      np.zeros(count, bool),
    )
    one.update(sequence_lib.Scored(begin, count, scores))
  found = one.result().prompt_log_probabilities
  np.testing.assert_array_equal(found, np.arange(8))


def test_what_waits_is_looked_up_anew_only_where_points_changed(
  make, monkeypatch
):
  engine = make(rows=3, counts=(20, 14))
  account, asked_for = engine.decoder.account, []

  def counted(holder, name):
    whole = getattr(holder, name)

    def called(*arguments):
      asked_for.append(name)
      return whole(*arguments)

    monkeypatch.setattr(holder, name, called)

  one = engine.submit(make_request(5, 30, 1))
  engine.advance()
  counted(account.tree, '_longest')
  counted(account, 'free_pages')
  counted(engine.state, '_find_needs')
  for _ in range(5):
    engine.advance()
  assert not asked_for
  large = engine.submit(make_request(40, 14, 2))
  for _ in range(5):
    engine.advance()
  assert not large.is_begun and one.reason is None
  assert asked_for == ['_longest', '_find_needs', *['free_pages'] * 5]
  engine.run(one, large)
  assert is_expected(one) and is_expected(large)


def test_a_short_prompt_behind_a_long_one_ends_within_three_rounds(make):
  engine = make(rows=3, counts=(140, 40), length=256)
  long = engine.submit(make_request(200, 4, 1))
  engine.advance()
  short = engine.submit(make_request(8, 1, 2))
  assert engine.run(short) <= 3
  assert not long.is_drawing
  engine.run(long)
  assert is_expected(short) and is_expected(long)


def test_what_another_head_judged_runs_again(make):
  """Engines one after another over one decoder, and the points of each."""
  first = make(is_judged=True)
  request = make_request(12, 3, 1)
  first.answer(request)
  reused = []
  for version in (b'1', b'2', None, b'2', None):
    engine = make(
      decoder=first.decoder, version=version, is_judged=version is not None
    )
    one = engine.submit(request)
    engine.run(one)
    assert is_expected(one) and (version is None or is_judged(one))
    reused.append(one.reused)
  assert reused == [11, 0, 0, 11, 11]


def test_a_stop_that_is_read_late_is_judged_and_resumed(make):
  """A round ahead, it is appended before anybody knows that it ends a text."""
  engine = make(ahead=True, is_judged=True)
  whole, _ = fake_device.expected(make_request(4, 9, 1))
  one = engine.submit(make_request(4, 9, 1, stop_tokens=[whole[3]]))
  engine.run(one)
  tokens = [*one.text().tokens, 9]
  behind = engine.submit(request_lib.Request(tokens, 2, one.request.sampling))
  engine.run(behind)
  assert behind.reused == 8 and is_judged(behind)


def test_what_is_judged_on_the_device_is_waited_for_and_resumed(make):
  """A round ahead, a prompt's point is there before its scores are read."""
  engine = make(ahead=True, is_judged=True)
  tree = engine.decoder.account.tree
  first = engine.submit(make_request(12, 3, 1))
  engine.advance()
  second = engine.submit(make_request(12, 3, 1))
  (point,) = tree.points()
  assert np.isnan(tree.scores(tree.match(second.text()))).any()
  assert len(engine._inflight) == 1
  engine.advance()
  assert second.row is not None and second.reused == 11 and point in tree
  engine.run(first, second)
  assert all(map(is_judged, (first, second)))


@pytest.mark.parametrize('length', [11, 12, 15, 16])
def test_a_stop_string_leaves_no_point_without_its_pages(make, length):
  """A round ahead, a token beyond it may have turned the ring."""
  engine = make(ahead=True, is_judged=True, tokenizer=tokenizer.Bytes())
  asks = (make_request(5, 12, seed) for seed in range(1000))
  # The last token shown completes the string, and no other holds its letter.
  at = length - 6
  one, letter = next(
    (one, chr(whole[at]))
    for one in asks
    for whole in [fake_device.expected(one)[0]]
    if 32 <= whole[at] < 127 and whole[at] not in whole[:at]
  )
  one = engine.submit(dataclasses.replace(one, stop_strings=[letter]))
  lengths, close = [], engine.decoder.close

  def closed(row):
    lengths.append(engine.decoder.length_of(row))
    close(row)

  engine.decoder.close = closed
  engine.run(one)
  assert one.reason == 'stop_string' and one.length == length
  # The token behind the stop is in the row, and in no text.
  assert lengths == [length + 1]
  # Where that began a page, the page of the window's first tokens is gone.
  points = {point.length for point in engine.decoder.account.tree.points()}
  assert points == ({5, length} if length % fake_engine.PAGE else {5})


def test_what_nobody_will_judge_is_not_resumed(make):
  """As where the device failed while a call was not read."""
  engine = make(is_judged=True)
  tree = engine.decoder.account.tree
  engine.answer(make_request(12, 1, 1))
  for point in tree.points():
    point.node.score_SC[1] = np.nan
  one = engine.submit(make_request(12, 3, 1))
  engine.run(one)
  assert is_expected(one) and is_judged(one) and one.reused == 0


def test_what_gives_no_numbers_takes_nobody_elses_points_with_it(make):
  """Its prefix is there only as the beginning of another owner's answer."""
  engine = make(bad=7)
  tree, shared = engine.decoder.account.tree, list(range(1, 9))

  def asks(owner, token):
    return request_lib.Request(
      [*shared, token], 9, sampling.Sampling(seed=1), owner=owner, shared=8
    )

  def reason(token):
    return fake_device.expected(asks('', token), 7)[1]

  good = next(x for x in range(1, 250) if reason(x) == 'length')
  bad = next(x for x in range(1, 250) if reason(x) == 'error')
  engine.answer(asks('a', good))
  for point in list(tree.points()):
    if point.length != 9:
      tree.drop(point)
  (point,) = tree.points()
  one = engine.submit(asks('b', bad))
  engine.run(one)
  assert one.reason == 'error' and one.reused == 8
  assert list(tree.points()) == [point]


def test_what_cannot_be_a_key_is_refused_before_it_has_a_row(make):
  engine = make()
  with pytest.raises(TypeError, match=r'request\.conversation=\[1\]'):
    engine.submit(make_request(conversation=[1]))
  with pytest.raises(ValueError, match=r'request\.owner'):
    engine.submit(make_request(owner='\ud800'))
  with pytest.raises(ValueError, match=r'request\.cache_salt'):
    engine.submit(make_request(cache_salt='\ud800'))
  assert engine.is_idle


@pytest.mark.slow
def test_a_long_text_is_looked_up_within_milliseconds():
  """Wanted are 2 ms of a core; on a loaded machine it takes more of them."""
  size, page = 2**15, 64
  pools = fake_device.pools(size + page, page, 1024, (600, 40))
  decoder = fake_device.Decoder(pools, 2, size + page)
  tokens = np.random.default_rng(0).integers(0, 251, size).astype(np.int32)
  text = prefix_tree.Text(tokens, 8000, b'owner')
  row = decoder.open(size, text=text)
  for begin in range(0, size, 1024):
    decoder.append({row: tokens[begin : begin + 1024]})
  decoder.account.tree.record(text, decoder.account.pages_of(row))
  taken = []
  for _ in range(7):
    begun = time.thread_time()
    match = decoder.account.tree.match(text)
    taken.append(time.thread_time() - begun)
  assert match.length == size - 1
  assert min(taken) < 0.010


def test_overtaking_counts_come_from_the_plan(make):
  """A large one that small ones overtake joins after so many of them."""
  engine = make(rows=4, counts=(20, 16))
  runs = [engine.submit(make_request(5, 30, x)) for x in range(2)]
  engine.advance()
  large = engine.submit(make_request(40, 8, 50, owner='large'))
  before = []
  for seed in range(100, 160):
    small = engine.submit(make_request(3, 1 + seed % 5, seed, owner=f'{seed}'))
    before.append(small)
    engine.advance()
  assert max(one.overtaken for one in before) <= schedule.OVERTAKES
  assert large.is_begun and large.overtaken <= schedule.OVERTAKES
  engine.run(*runs, large, *before)


def test_no_chunk_is_left_to_wait_for(make, monkeypatch):
  """A device that works behind the host must not fall behind by a prompt."""
  waited = []
  monkeypatch.setattr(inflight.jax, 'block_until_ready', waited.append)
  engine = make()
  one = engine.submit(make_request(60, 1))
  engine.run(one)
  assert len(waited) == 4  # 60 tokens in chunks of 16.
