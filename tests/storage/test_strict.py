"""Configs as plain data: what goes out comes back, and nothing else does."""

import dataclasses

import pytest

from kaiju_jax.storage import strict
from kaiju_jax.training import experiment as experiment_lib


@dataclasses.dataclass
class Inner:
  rate: float = 0.5
  base: float | None = None


@dataclasses.dataclass
class Outer:
  count: int = 3
  name: str = 'a'
  on: bool = False
  lengths: tuple[int, ...] = (1, 2)
  inner: Inner = dataclasses.field(default_factory=Inner)
  several: tuple[Inner, ...] = ()
  perhaps: Inner | None = None


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
    ('inner', {'rate': 1.0}, 'inner.base: missing'),
    ('several', [{'rate': 1.0}], r'several\[0\].base: missing'),
    ('perhaps', {'rate': 1.0}, 'perhaps.base: missing'),
    ('perhaps', 3, r'perhaps=3: must be .*Inner \| None'),
    ('inner', {'rate': float('nan'), 'base': None}, 'inner.rate=nan: .*finite'),
  ],
)
def test_an_ill_typed_field_is_named_with_its_value(name, value, wanted):
  data = strict.dump(Outer()) | {name: value}
  with pytest.raises(ValueError, match=wanted):
    strict.parse(Outer, data)


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
