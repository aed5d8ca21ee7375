"""Macros expand once, by given chance and time; what is unknown stays."""

import datetime
import random
import tracemalloc

import pytest

from kaiju_jax.characters.prompts import macros

NOW = datetime.datetime(2031, 2, 28, 18, 5)


def _expand(text, seed=0):
  return macros.expand(text, 'Ada', 'Bo', random.Random(seed), NOW)


@pytest.mark.parametrize(
  'text, expanded',
  [
    ('{{char}} {{ User }} {{CHAR}}', 'Ada Bo Ada'),
    ('<BOT> <USER> <char> <user> <bot>', 'Ada Bo Ada Bo Ada'),
    ('{{time}} on {{Date}}', '18:05 on 2031-02-28'),
    ('a{{// not shown }}b{{comment: x}}c{{hidden_key:k}}', 'abc'),
    ('{{roll:1}} {{roll:d1}} {{roll:3d1}} {{roll 2d1}}', '1 1 3 2'),
    ('{{random:a}} {{pick::b}} {{random:{{char}}}}', 'a b Ada'),
    ('{{random:a\\,b}}', 'a,b'),
    ('{{unknown}} {{getvar::x}} {{roll:d0}} {{roll:x}}', None),
    ('{{random}} {{}} {{ {char} }} {{time', None),
    ('{{{{{{{{' * 1000, None),
    ('<uſer> {{uſer}} {{comment：x}} <CHAR\u0131>', None),
  ],
)
def test_macros(text, expanded):
  assert _expand(text) == (text if expanded is None else expanded)


def test_chance():
  text = '{{random:a, b ,c}}{{pick::d::e,f}}{{roll:2d6}}'
  drawn = [_expand(text, seed) for seed in range(300)]
  assert {one[0] for one in drawn} == set('abc')
  assert {one[1:].rstrip('0123456789') for one in drawn} == {'d', 'e,f'}
  rolled = {int(one.lstrip('abcdef,')) for one in drawn}
  assert rolled == set(range(2, 13))
  assert drawn[0] == _expand(text, 0)
  assert {_expand('{{pick::a,b}}', seed) for seed in range(9)} == {'a', 'b'}


def test_what_is_expanded_is_not_expanded_again():
  assert macros.expand('{{user}}', 'Ada', '{{char}}') == '{{char}}'
  assert macros.expand('{{random:{{user}}}}', 'A', 'x}} {{time', None, NOW)


@pytest.mark.parametrize('text', ['{{char}}' * 20_000, '{{user}}' * 20_000])
def test_what_grows_over_its_bound_is_refused_before_it_is_built(text):
  name, most = 'é' * 100, 2**18
  tracemalloc.start()
  try:
    with pytest.raises(macros.TooLarge, match='more bytes with its macros'):
      macros.expand(text, name, name, most=most)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  # 4 MB would be built.
  assert peak < 4 * most


def test_a_text_may_have_as_many_bytes_as_its_bound():
  for text, made in (
    ('{{char}}' * 5, 'é' * 10),
    ('é' * 10, 'é' * 10),
    ('{{date}}{{char}}', '2031-02-28éé'),
    ('{{comment: long}}{{char}}', 'éé'),
    ('{{date}}' * 3, '2031-02-28' * 3),
    ('{{random:éé}}' * 3, 'éé' * 3),
  ):
    most = max(len(text.encode()), len(made.encode()))
    options = {'random': random.Random(0), 'now': NOW}
    assert macros.expand(text, 'éé', 'Bo', most=most, **options) == made
    with pytest.raises(macros.TooLarge, match=f'at most {most - 1}'):
      macros.expand(text, 'éé', 'Bo', most=most - 1, **options)
  with pytest.raises(macros.TooLarge, match='65,537 bytes: at most 65,536'):
    macros.expand_stable('x' * 65_537, 'Ada')


def test_the_longest_draw_decides_whether_a_text_is_too_large():
  name = 'é' * 100

  def check(*counts):
    several = (
      ','.join('{{char}}' * n for n in (count, 3, count)) for count in counts
    )
    text = ''.join('{{random:' + one + '}}' for one in several)
    macros.check_all_draws(text, name)

  check(200, 127)  # 65,400 bytes.
  # On a Wednesday 65,535 bytes, and too many.
  macros.check_all_draws('{{char}}' * 327 + '{{weekday}}' * 15, name)
  with pytest.raises(macros.TooLarge):
    macros.check_all_draws('{{char}}' * 327 + '{{weekday}}' * 16, name)
  with pytest.raises(macros.TooLarge):
    check(200, 128)


def test_dice_are_counted_before_they_are_rolled():
  assert _expand('{{roll:50d1}}' * 20) == '50' * 20
  with pytest.raises(macros.TooLarge, match='more than 1,000 dice'):
    _expand('{{roll:50d1}}' * 20 + '{{roll:d1}}')


def test_without_chance_and_time_they_stay():
  text = '{{random:a,b}} {{roll:d6}} {{time}} {{date}}'
  assert macros.expand(text, 'Ada', 'Bo') == text


def test_what_all_users_share_reads_the_same_for_all():
  text = '{{user}} has {{roll:d1000000}} {{random:a,b,c}} at {{time}}'
  made = macros.expand_stable(text, 'Ada')
  assert made == macros.expand_stable(text, 'Ada')
  assert made.startswith('User has ') and made.endswith(' at {{time}}')
  assert made != macros.expand_stable(text + ' ', 'Ada').rstrip()
