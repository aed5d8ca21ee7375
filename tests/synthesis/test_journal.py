"""A journal gives back what was noted, whatever cut it off."""

import pytest

from kaiju_jax.synthesis import journal
from kaiju_jax.synthesis import variations

HEAD = {'generator': 'runs/g, step 3', 'settings': {'seed': 0, 'top_p': '0.9'}}
JUDGED = [
  (variations.Variation(0, 7, 'Who?', 'Ada', 'Ada', -1.5, -3.25), 'kept'),
  (variations.Variation(1, 8), 'form'),
]


def test_it_gives_back_what_was_noted(tmp_path):
  with journal.Journal(tmp_path / 'j', HEAD) as one:
    one.append('a', JUDGED)
    one.append('b\n', [])
  with journal.Journal(tmp_path / 'j', HEAD) as one:
    assert dict(one.judged) == {'a': JUDGED, 'b\n': []}


def test_a_line_that_was_cut_off_is_dropped_and_made_anew(tmp_path):
  with journal.Journal(tmp_path / 'j', HEAD) as one:
    one.append('a', JUDGED)
    one.append('b', JUDGED)
  whole = (tmp_path / 'j').read_bytes()
  first = whole.index(b'\n') + 1
  for size in (0, 1, first - 1, first, first + 9, len(whole) - 1):
    (tmp_path / 'j').write_bytes(whole[:size])
    with journal.Journal(tmp_path / 'j', HEAD) as one:
      for name in 'ab':
        if name not in one.judged:
          one.append(name, JUDGED)
    assert (tmp_path / 'j').read_bytes() == whole


def test_a_journal_of_another_synthesis_is_refused(tmp_path):
  journal.Journal(tmp_path / 'j', HEAD).__exit__()
  with pytest.raises(ValueError) as refused:
    journal.Journal(tmp_path / 'j', HEAD | {'generator': 'runs/h, step 3'})
  assert 'differs in generator.' in str(refused.value)


@pytest.mark.parametrize('line', [b'{"passage": "a"}', b'[]', b'17', b'{'])
def test_a_damaged_line_is_named(tmp_path, line):
  journal.Journal(tmp_path / 'j', HEAD).__exit__()
  with open(tmp_path / 'j', 'ab') as file:
    file.write(line + b'\n')
  with pytest.raises(ValueError) as refused:
    journal.Journal(tmp_path / 'j', HEAD)
  assert 'j, line 2: not' in str(refused.value)
