"""Results of a run, and paired differences, against arithmetic by hand."""

from kaiju_jax.evaluation import run_results


def test_measures_take_the_last_steps_and_the_last_evaluation():
  records = [
    {'step': 1, 'tokens': 8, 'loss': 100.0},
    {'step': 100, 'tokens': 800, 'loss': 7.0},
    {'step': 100, 'tokens': 800, 'eval_loss': 9.0, 'eval_bits': 3.0},
    {'step': 101, 'tokens': 808, 'loss': 4.0},
    {'step': 200, 'tokens': 1600, 'loss': 2.0},
    {'step': 200, 'tokens': 1600, 'eval_loss': 5.0},
  ]
  # Steps 101 … 200 are the last hundred; step 100 is not among them.
  assert run_results.summarize(records) == {
    'loss': 3.0,
    'eval_loss': 5.0,
    'eval_bits': 3.0,
  }
  assert run_results.summarize(records[:3])['loss'] == 53.5
  assert run_results.summarize([]) == {}
