"""Each rule of the filters rejects what breaks it, and nothing more."""

import dataclasses

import pytest

from kaiju_jax.synthesis import filters
from kaiju_jax.synthesis import form as form_lib
from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.synthesis import variations

PASSAGE = 'Ada Moril lives in New Sanodu. She plays the lute.'
GOOD = variations.Variation(
  number=0,
  seed=1,
  question='Where does Ada live?',
  answer='New Sanodu',
  again='new sanodu.',
  informed=-1.0,
  uninformed=-9.0,
)


def verdict(settings=None, **changes):
  one = dataclasses.replace(GOOD, **changes)
  return filters.judge(PASSAGE, [one], settings or settings_lib.Settings())[0]


@pytest.mark.parametrize(
  'changes, expected',
  [
    ({}, 'kept'),
    ({'question': '', 'answer': '', 'informed': None}, 'form'),
    ({'question': '?!'}, 'form'),
    ({'answer': '...', 'again': '...'}, 'form'),
    ({'uninformed': None}, 'form'),
    ({'answer': 'Sanodu New', 'again': 'Sanodu New'}, 'grounded'),
    ({'answer': 'New Sanod', 'again': 'New Sanod'}, 'grounded'),
    ({'answer': 'lives in new', 'again': 'lives in new'}, 'kept'),
    ({'again': 'the lute'}, 'consistent'),
    ({'again': ''}, 'consistent'),
    ({'uninformed': -1.9}, 'gain'),
    ({'uninformed': -2.0}, 'kept'),
  ],
)
def test_a_variation_is_judged_by_the_first_rule_it_breaks(changes, expected):
  assert verdict(**changes) == expected


@pytest.mark.parametrize(
  'off, changes',
  [
    ({'grounded': False}, {'answer': 'Rome', 'again': 'Rome'}),
    ({'consistent': False}, {'again': 'the lute'}),
    ({'gain': -float('inf')}, {'uninformed': 5.0}),
  ],
)
def test_a_rule_can_be_turned_off(off, changes):
  assert verdict(**changes) != 'kept'
  assert verdict(settings_lib.Settings(**off), **changes) == 'kept'


def test_siblings_that_ask_the_same_are_kept_once():
  same = dataclasses.replace(GOOD, question='where does ADA live')
  near = dataclasses.replace(
    GOOD, question='Where does our Ada Moril live just now?'
  )
  nearer = dataclasses.replace(
    GOOD, question='Where does our Ada Moril live now?'
  )
  other = dataclasses.replace(
    GOOD,
    question='Where does Ada live?',
    answer='the lute',
    again='the lute',
  )
  judged = filters.judge(
    PASSAGE, [GOOD, same, near, nearer, other], settings_lib.Settings()
  )
  # The nearer one shares 7 of 8 words with the one before it; the last has
  # another answer.
  assert judged == ['kept', 'repeated', 'kept', 'repeated', 'kept']
  # What was rejected for another reason takes nobody's place.
  wrong = dataclasses.replace(GOOD, again='the lute')
  judged = filters.judge(PASSAGE, [wrong, GOOD], settings_lib.Settings())
  assert judged == ['consistent', 'kept']


@pytest.mark.parametrize(
  'make, settings, field',
  [
    (settings_lib.Settings, {'variations': 0}, 'variations=0'),
    (settings_lib.Settings, {'answer_tokens': 0}, 'answer_tokens=0'),
    (settings_lib.Settings, {'temperature': -1.0}, 'temperature=-1.0'),
    (settings_lib.Settings, {'temperature': 0}, 'temperature=0 .*=4'),
    (settings_lib.Settings, {'top_p': 0.0}, 'top_p=0.0'),
    (settings_lib.Settings, {'overlap': 0.0}, 'overlap=0.0'),
    (settings_lib.Settings, {'gain': float('nan')}, 'gain=nan'),
    (form_lib.Form, {'question': ''}, "form.question=''"),
    (form_lib.Form, {'end': ''}, "form.end=''"),
    (form_lib.Form, {'header': 'a\0'}, 'form.header: .*NUL'),
  ],
)
def test_what_cannot_be_meant_is_refused(make, settings, field):
  with pytest.raises(ValueError, match=field):
    make(**settings)
