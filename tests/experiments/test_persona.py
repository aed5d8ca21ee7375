"""experiments.persona from its flags to a decision and its exit status."""

import datetime
import json

import pytest

from kaiju_jax.reporting import decision
from tests.experiments import forked

RULES = ['experiments.persona', '--judge=rules']


@pytest.mark.slow
def test_references_pass_others_fail_and_few_decide_nothing(tmp_path):
  commands = {
    'few': ['--references'],
    'enough': ['--references', '--generated=200'],
    'wrong': ['--references', '--generated=200', '--swapped'],
  }
  done = forked.run(
    [[*RULES, *x, f'--out={tmp_path / n}'] for n, x in commands.items()]
  )
  assert [one.returncode for one in done] == [4, 0, 3], done
  assert 'public: 8 conversations; at least 200 are needed' in done[0].stderr
  found = decision.load(tmp_path / 'enough' / decision.FILE)
  assert found.status == 'passed' and len(found.figures['scores']) == 600
  assert found.inputs == {
    'golden': 'generated, 200 per tier, seed 0',
    'responder': 'references',
    'judge': 'rules',
  }
  text = (tmp_path / 'wrong' / 'report.md').read_text()
  assert 'references, another persona' in text
  watch = f'--watch={tmp_path / "enough" / decision.FILE}'
  again, dropped = forked.run(
    [
      [*RULES, '--references', '--generated=50', watch],
      [*RULES, '--references', '--generated=50', '--swapped', watch],
    ]
  )
  assert again.returncode == 0, again
  assert dropped.returncode == 3
  assert 'mature: scores dropped by' in dropped.stderr


def test_a_judge_needs_labels(tmp_path):
  label = {
    'conversation': 'official-tilda',
    'replies': ['Great gears!'] * 8,
    'scores': {'speech': 5, 'backstory': 1, 'goal': 1},
    'date': datetime.date.today().isoformat(),
  }
  path = tmp_path / 'labels.jsonl'
  path.write_text(f'{json.dumps(label)}\n')
  words = ['experiments.judge', '--judge=rules', f'--labels={path}']
  [few] = forked.run([[*words, f'--out={tmp_path / "out"}']])
  assert few.returncode == 4 and '1 labels of the last 31 days' in few.stderr
  assert decision.load(tmp_path / 'out' / decision.FILE).name == 'judge'
