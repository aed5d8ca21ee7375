"""Limits: what is let through in any time, and what is remembered."""

import collections
import random

import pytest

from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import limits
from tests.serving import trivial


@pytest.fixture
def clock():
  return trivial.Clock()


def refusal(call, *arguments):
  """Returns the code of a refusal, and after how many seconds to ask again."""
  with pytest.raises(errors.ApiError) as caught:
    call(*arguments)
  assert caught.value.status == 429
  return caught.value.code, int(caught.value.headers['Retry-After'])


def test_any_stretch_of_time_lets_through_a_bucket_of_tokens(clock):
  # The definition itself, with its level of tokens, as the oracle.
  rng = random.Random(2)
  buckets = limits.Buckets(clock=clock)
  level, rate, burst = 4.0, 30, 4
  for _ in range(3000):
    # A token comes in two seconds; a bucket never holds more than its burst.
    passed = rng.choice([0, 0, 0.5, 1, 1.999, 2, 3, 9, 1e6])
    clock.now += passed
    level = min(burst, level + passed * rate / 60)
    wait = buckets.take('a', rate, burst)
    if level >= 1 - 1e-6:
      assert wait == 0
      level -= 1
    else:
      assert wait == pytest.approx((1 - level) * 60 / rate, abs=1e-6)


def test_keys_have_their_own_buckets_and_the_oldest_is_forgotten(clock):
  buckets = limits.Buckets(most=3, clock=clock)
  for key in 'abca':
    assert buckets.take(key, 1, 2) == 0
  assert buckets.take('a', 1, 2) > 0
  assert buckets.take('d', 1, 2) == 0  # The oldest is b now.
  assert len(buckets) == 3
  assert buckets.take('a', 1, 2) > 0
  assert [buckets.take('b', 1, 2) for _ in range(2)] == [0, 0]
  for key in range(10_000):
    buckets.take(key, 1, 1)
  assert len(buckets) == 3


def test_owners_are_told_when_to_ask_again(clock):
  them = limits.Limits(limits.Rate(requests=4), clock=clock)
  them.request('ann')
  assert refusal(them.request, 'ann') == ('rate_limit_exceeded', 15)
  them.request('bob')
  for _ in range(25):
    them.request('cat', limits.Rate(requests=100))
  clock.now += 15
  them.request('ann')


def test_streams_are_counted_until_they_are_closed():
  them = limits.Limits(limits.Rate(streams=2), streams=3)
  first = them.stream('ann')
  with them.stream('ann'):
    assert refusal(them.stream, 'ann')[0] == 'rate_limit_exceeded'
    with them.stream('bob'):
      assert refusal(them.stream, 'cat')[0] == 'server_busy'
  for _ in range(3):
    first.close()  # Closed twice is closed once.
  held = [them.stream('ann'), them.stream('ann')]
  assert refusal(them.stream, 'ann')
  held.append(them.stream('cat', limits.Rate(streams=1)))
  for one in held:
    one.close()
  assert not them._streams._counts and not them._streams.taken


def test_slots_are_never_more_than_there_are_and_none_is_lost():
  rng = random.Random(3)
  slots = limits.Slots(5, 2)
  held = []
  for _ in range(2000):
    if rng.random() < 0.6:
      key = rng.choice('abcd')
      fits = len(held) < 5 and held.count(key) < 2
      assert slots.take(key) == fits
      if fits:
        held.append(key)
    elif held:
      slots.free(held.pop(rng.randrange(len(held))))
    assert slots.taken == len(held)
    assert dict(slots._counts) == collections.Counter(held)


def test_failures_are_limited_per_address(clock):
  failures = limits.Failures(8, clock)
  for _ in range(2):
    failures.note('192.0.2.1')
  assert refusal(failures.note, '192.0.2.1')
  failures.note('192.0.2.2')
  clock.now += 60 / 8
  failures.note('192.0.2.1')


@pytest.mark.parametrize(
  'one, other, same',
  [
    ('192.0.2.1', '192.0.2.2', False),
    ('192.0.2.1', '::ffff:192.0.2.1', True),
    ('2001:db8::1', '2001:db8::ffff:1', True),
    ('2001:db8::1', '2001:db8:0:1::1', False),
    ('', 'testclient', False),
  ],
)
def test_addresses_of_one_client_count_as_one(one, other, same):
  assert (limits.network(one) == limits.network(other)) == same


@pytest.mark.parametrize('field', ['requests', 'streams'])
@pytest.mark.parametrize('value', [0, -1, 1.5, True, None])
def test_a_rate_is_a_number_of_things(field, value):
  with pytest.raises(ValueError, match=f'{field}={value}'):
    limits.Rate(**{field: value})


def test_text_is_limited_per_owner_before_it_is_read(clock):
  rate = limits.Rate(4)
  held = limits.Limits(rate, clock=clock)
  held.text('ann', 0)
  held.text('ann', rate.bytes)  # More than at once may come once.
  assert refusal(held.text, 'ann', 1)[1] == 45
  held.text('ben', 1)
  clock.now += 44.9
  assert refusal(held.text, 'ann', 0)
  clock.now += 0.2
  held.text('ann', 1)
  # A text of any size, and then what its prompt has in tokens.
  held.prompt('cid', rate.tokens // 4)
  held.text('cid', 1)
  held.prompt('cid', rate.tokens // 60)
  with pytest.raises(errors.ApiError, match='tokens of prompts per') as caught:
    held.text('cid', 1)
  assert caught.value.headers == {'Retry-After': '1'}
