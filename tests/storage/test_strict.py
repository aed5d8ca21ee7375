"""Configs as plain data: what goes out comes back, and nothing else does."""

import dataclasses
import json
import random
from typing import Literal

import pytest

from kaiju_jax.storage import strict
from kaiju_jax.training import experiment as experiment_lib


@dataclasses.dataclass
class Inner:
  rate: float = 0.5
  base: float | None = None


@dataclasses.dataclass
class Named:
  name: str
  size: int = 2


@dataclasses.dataclass
class Outer:
  count: int = 3
  name: str = 'a'
  on: bool = False
  lengths: tuple[int, ...] = (1, 2)
  inner: Inner = dataclasses.field(default_factory=Inner)
  several: tuple[Inner, ...] = ()
  perhaps: Inner | None = None
  listed: tuple[Named, ...] = ()


def test_what_goes_out_comes_back():
  outer = Outer(count=7, lengths=(5,), inner=Inner(rate=1e-3, base=1e4))
  outer.several = Inner(), Inner(0.1)
  assert strict.parse(Outer, strict.dump(outer)) == outer
  outer.perhaps = Inner(0.2)
  assert strict.parse(Outer, strict.dump(outer)) == outer
  experiment = experiment_lib.Experiment()
  experiment.model.rope_global = 0.0
  dumped = strict.dump(experiment)
  assert strict.parse(experiment_lib.Experiment, dumped) == experiment


@dataclasses.dataclass
class Turn:
  way: Literal['left', 'right']


def test_a_word_is_one_of_those_that_are_named():
  assert strict.parse(Turn, {'way': 'left'}) == Turn('left')
  with pytest.raises(ValueError, match=r"way='up': must be typing.Literal\['l"):
    strict.parse(Turn, {'way': 'up'})


def test_an_int_may_stand_for_a_float_and_becomes_one():
  inner = strict.parse(Inner, {'rate': 1, 'base': 10})
  assert inner == Inner(1.0, 10.0)
  assert type(inner.rate) is float and type(inner.base) is float


@pytest.mark.parametrize(
  ('name', 'value', 'wanted'),
  [
    ('count', 3.0, 'count=3.0: must be int'),
    ('count', True, 'count=True: must be int'),
    ('count', '3', "count='3': must be int"),
    ('count', None, 'count=None: must be int'),
    ('name', 3, 'name=3: must be str'),
    ('on', 1, 'on=1: must be bool'),
    ('lengths', 1, 'lengths=1: must be tuple'),
    ('lengths', [1, 'b'], r"lengths\[1\]='b': must be int"),
    ('inner', 3, 'inner=3: must be an object'),
    ('inner', {'rate': 'x', 'base': None}, "inner.rate='x': must be float"),
    ('inner', {'rate': 1.0, 'base': 'x'}, r"inner.base='x': must be float \|"),
    ('listed', [{}], r'listed\[0\].name: missing'),
    ('listed', [{'size': 1}], r'listed\[0\].name: missing'),
    ('listed', [{'name': 'a', 'siez': 1}], r'\.siez: .*listed\[0\]\.size\?'),
    ('perhaps', 3, r'perhaps=3: must be .*Inner \| None'),
    ('inner', {'rate': float('nan'), 'base': None}, 'inner.rate=nan: .*finite'),
  ],
)
def test_an_ill_typed_field_is_named_with_its_value(name, value, wanted):
  data = strict.dump(Outer()) | {name: value}
  with pytest.raises(ValueError, match=wanted):
    strict.parse(Outer, data)


def _drop(rng, cls, data):
  """Returns data without some fields that have defaults, nested ones too."""
  kept = {}
  for field in dataclasses.fields(cls):
    value = data[field.name]
    has_default = (
      field.default is not dataclasses.MISSING
      or field.default_factory is not dataclasses.MISSING
    )
    for inner in INNER.get(field.name, ()) if value else ():
      if isinstance(value, dict):
        value = _drop(rng, inner, value)
      else:
        value = [_drop(rng, inner, one) for one in value]
    if not has_default or rng.random() < 0.5:
      kept[field.name] = value
  return kept


INNER = {
  'inner': (Inner,),
  'several': (Inner,),
  'perhaps': (Inner,),
  'listed': (Named,),
}


def test_fields_that_a_file_lacks_have_their_defaults():
  """At every depth, in whatever order they came to the code."""
  rng = random.Random(0)
  for _ in range(200):
    full = Outer(
      rng.choice([3, 4]),
      inner=Inner(rng.choice([0.5, 1.0])),
      several=(Inner(base=2.0),) * rng.randrange(3),
      perhaps=rng.choice([None, Inner(0.1)]),
      listed=(Named('a'), Named('b', 3))[: rng.randrange(3)],
    )
    data = json.loads(json.dumps(_drop(rng, Outer, strict.dump(full))))
    found = strict.parse(Outer, data)
    for field in dataclasses.fields(Outer):
      # Whatever is there counts, and what is not has its default.
      if field.name not in data:
        assert getattr(found, field.name) == getattr(Outer(), field.name)
    assert (
      strict.differences(strict.fill(Outer, data), strict.dump(found)) == {}
    )
    assert [x.name for x in found.listed] == [
      x['name'] for x in data.get('listed', ())
    ]
    if 'inner' in data:
      assert found.inner == Inner(**data['inner'])


def test_no_field_of_a_run_is_needed_to_read_it():
  """So a new field with a default leaves every run what it was."""
  experiment = experiment_lib.Experiment()
  full = strict.dump(experiment)

  def drop_each(data):
    for name, value in data.items():
      yield {key: one for key, one in data.items() if key != name}
      if isinstance(value, dict):
        for inner in drop_each(value):
          yield {**data, name: inner}

  count = 0
  for data in drop_each(full):
    assert strict.parse(experiment_lib.Experiment, data) == experiment
    filled = strict.fill(experiment_lib.Experiment, data)
    assert strict.differences(filled, full) == {}
    count += 1
  assert count > 100


def test_what_cannot_be_parsed_is_filled_and_compared():
  data = {'inner': 7, 'name': 3, 'listed': [{}, 4], 'raet': 1}
  filled = strict.fill(Outer, data)
  assert filled['inner'] == 7 and filled['count'] == 3
  assert filled['listed'] == [{'size': 2}, 4]
  assert filled['raet'] == 1 and strict.fill(Outer, [1]) == [1]


def test_a_later_field_changes_no_digest():
  @dataclasses.dataclass
  class Later(Outer):
    inner: Inner = dataclasses.field(default_factory=Inner)
    more: Inner = dataclasses.field(default_factory=Inner)
    mode: str = 'old'

  known = {'count', 'name', 'on', 'lengths', 'inner.rate', 'inner.base'}
  known |= {'several', 'perhaps', 'listed'}
  before = strict.dump_known(Outer(), known)
  assert before == dataclasses.asdict(Outer())
  assert strict.dump_known(Later(), known) == before
  found = strict.dump_known(Later(mode='new', more=Inner(base=1.0)), known)
  assert found == {**before, 'mode': 'new', 'more': {'base': 1.0}}


def test_an_unknown_field_is_named_with_the_one_that_was_meant():
  data = strict.dump(Outer())
  data['inner']['raet'] = data['inner'].pop('rate')
  with pytest.raises(ValueError, match=r'inner\.raet: .*inner\.rate\?'):
    strict.parse(Outer, data)


def test_dump_refuses_what_parse_would():
  with pytest.raises(ValueError, match=r"inner\.rate='1e-3': must be float"):
    strict.dump(Outer(inner=Inner(rate='1e-3')))
  misspelt = Outer()
  misspelt.inner.raet = 1.0
  with pytest.raises(ValueError, match=r'inner\.raet: .*inner\.rate\?'):
    strict.dump(misspelt)
  misspelt = Outer(several=(Inner(), Inner()))
  misspelt.several[1].raet = 1.0
  with pytest.raises(ValueError, match=r'several\[1\]\.raet: .*\.rate\?'):
    strict.dump(misspelt)


def test_differences_are_by_dotted_name_and_say_what_is_absent():
  ours = {'a': 1, 'b': {'c': (1, 2), 'd': 2}}
  theirs = {'a': 1, 'b': {'c': [1, 2], 'e': 2}}
  assert strict.differences(ours, ours) == {}
  assert strict.differences(ours, theirs) == {
    'b.d': (2, strict.ABSENT),
    'b.e': (strict.ABSENT, 2),
  }


def test_differences_of_listed_objects_name_the_field():
  ours, theirs = (
    strict.dump(Outer(several=several))
    for several in ((Inner(), Inner(0.1)), (Inner(), Inner(0.2)))
  )
  assert strict.differences(ours, theirs) == {'several[1].rate': (0.1, 0.2)}
  assert strict.differences(ours, strict.dump(Outer())).keys() == {
    'several',
    *(f'several[{n}].{name}' for n in (0, 1) for name in ('rate', 'base')),
  }
