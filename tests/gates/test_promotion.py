"""A model is promoted by all gates of a policy, and served by no other."""

import datetime
import json

import pytest

from kaiju_jax.app import serve
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.gates import promotion
from kaiju_jax.reporting import decision
from kaiju_jax.reporting import report
from kaiju_jax.runs import load

TODAY = datetime.date(2031, 2, 28)
GATES = {
  'persona': ['persona', '--model={candidate}', '--out={out}'],
  'quantization': ['gate', '--candidate={candidate}', '--out={out}'],
}


def write_policy(path, **changes):
  data = {'format': promotion.FORMAT, 'days': 31, 'gates': GATES} | changes
  path.write_text(json.dumps(data))
  return path


@pytest.fixture
def policy(tmp_path):
  return write_policy(tmp_path / 'policy.json')


@pytest.fixture
def candidate(tmp_path):
  folder = tmp_path / 'model'
  folder.mkdir()
  (folder / 'weights').write_bytes(b'codes')
  return folder


def gates(persona=decision.PASSED, quantization=decision.PASSED, **changes):
  """Returns what stands for commands: each writes a decision of a status."""
  statuses = {'persona': persona, 'gate': quantization}

  def call(words):
    folder = words[-1].removeprefix('--out=')
    status = statuses[words[0]]
    reasons = () if status == decision.PASSED else ('It is so.',)
    found = decision.Decision(words[0], status, reasons, {'share': 0.5}, {})
    if changes.get('writes', True):
      report.Report().decide(found).write(folder)
    return changes.get('ends', found.exit_status)

  return call


def promote(candidate, policy, call, weights='w1', today=TODAY):
  wanted = promotion.load_policy(policy)
  return promotion.run(str(candidate), wanted, weights, today, call)


def test_a_model_that_passes_all_gates_is_promoted(candidate, policy):
  found = promote(candidate, policy, gates())
  assert (found.status, found.exit_status) == (decision.PASSED, 0)
  assert found.inputs == {
    'policy': decision.digest(policy),
    'candidate': decision.digest(candidate),
    'weights': 'w1',
  }
  persona = found.figures['gates']['persona']
  assert persona['decision']['figures'] == {'share': 0.5}
  assert persona['command'][1] == f'--model={candidate}'
  text = promotion.page(found).markdown()
  assert '| persona | passed | `persona --model=' in text and 'w1' in text


@pytest.mark.parametrize(
  'call, status, words',
  [
    (gates(quantization=decision.REFUSED), 3, 'quantization: gate: refused'),
    (gates(persona=decision.NOT_EVALUATED), 4, 'persona: persona: not eval'),
    (
      gates(persona=decision.NOT_EVALUATED, quantization=decision.REFUSED),
      3,
      'It is so',
    ),
    (gates(writes=False), 4, 'ended with status 0, and has no decision'),
    (gates(ends=1), 4, 'ended with status 1, and says passed'),
    (gates(persona=decision.REFUSED, ends=0), 4, 'status 0, and says refused'),
  ],
)
def test_nothing_else_promotes(candidate, policy, call, status, words):
  found = promote(candidate, policy, call)
  assert found.exit_status == status
  assert words in ' '.join(found.reasons)


def test_a_model_that_changes_under_its_gates_is_not_evaluated(
  candidate, policy
):
  call = gates()

  def changes(words):
    (candidate / 'weights').write_bytes(b'other')
    return call(words)

  found = promote(candidate, policy, changes)
  assert found.exit_status == 4 and 'has changed' in found.reasons[-1]


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'format': 'x'}, "format='x': must be"),
    ({'days': 0}, 'days=0: must be an integer from 1'),
    ({'days': True}, 'days=True: must be an integer'),
    ({'gates': {}}, 'gates={}: must name one gate'),
    ({'gates': {'a': 'persona'}}, "gates.a='persona': must be a command"),
    ({'gates': {'a': ['train']}}, "gates.a: 'train': must be one of persona"),
    ({'gates': {'a': ['persona']}}, 'gates.a: must write its decision'),
    ({'gates': {'a': ['persona', '{out}']}}, 'one must read {candidate}'),
    ({'other': 1}, 'other: must be format, days, gates'),
  ],
)
def test_a_bad_policy_is_refused_by_its_field(tmp_path, changes, words):
  policy = write_policy(tmp_path / 'policy.json', **changes)
  with pytest.raises(ValueError) as caught:
    promotion.load_policy(policy)
  assert words in str(caught.value)


def test_a_server_takes_the_promoted_weights_alone(
  tmp_path, candidate, policy, monkeypatch
):
  found = promote(candidate, policy, gates())
  passed = tmp_path / 'promoted.json'
  decision.write(passed, found)
  month = datetime.timedelta(days=31)
  day = datetime.timedelta(days=1)
  promotion.check(policy, passed, 'w1', TODAY + month)

  def refusal(file, weights='w1', today=TODAY, wanted=policy):
    with pytest.raises(ValueError) as caught:
      promotion.check(wanted, file, weights, today)
    return str(caught.value)

  assert 'demands a promotion, and none is given' in refusal('')
  assert 'other weights' in refusal(passed, weights='w2')
  assert '32 days old' in refusal(passed, today=TODAY + month + day)
  assert '-1 days old' in refusal(passed, today=TODAY - day)
  other = write_policy(tmp_path / 'other.json', days=32)
  assert 'another policy' in refusal(passed, wanted=other)
  refused = tmp_path / 'refused.json'
  failed = promote(candidate, policy, gates(persona=decision.REFUSED))
  decision.write(refused, failed)
  assert 'refused: must be a promotion that passed' in refusal(refused)
  with pytest.raises(FileNotFoundError):
    promotion.check(policy, tmp_path / 'missing.json', 'w1', TODAY)
  # A server asks before it compiles anything, of what it has loaded.
  monkeypatch.setattr(load, 'digest', lambda loaded: loaded)
  folder = str(tmp_path / 'server')
  settings = settings_lib.Settings(folder=folder, policy=str(policy))
  with pytest.raises(ValueError, match='demands a promotion'):
    serve.assemble('w1', settings)


def test_a_gate_is_one_of_our_commands():
  """One that lacks its flags ends with the status of errors."""
  assert promotion.call_command(['gate']) == 1
