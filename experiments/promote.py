"""Promotes a model: runs the gates of a policy, and writes one decision.

    python -m experiments.promote --candidate=exported --policy=policy.json \\
      --out=promotion
    python -m experiments.serve --model=exported --policy=policy.json \\
      --promotion=promotion

The policy's file says which commands a model must pass (docs/gates.md). The
exit status is 0 if all pass, 3 if one refuses, and 4 if one was not evaluated:
it failed, wrote no decision, or measured too little. The promotion names the
policy's bytes and the weights' digest, as a server loads them: --int8, --kv
and --dtype are the server's, too.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.runs import command

_CANDIDATE = flags.DEFINE_string(
  'candidate', None, 'A workdir, an export or a Hugging Face folder.'
)
_POLICY = flags.DEFINE_string('policy', None, 'A JSON file: the gates.')
_ARM = shared_flags.define_arm()
_OUT = flags.DEFINE_string('out', None, 'A new folder.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _CANDIDATE, _POLICY, _OUT)
  _run()


def _run() -> None:
  from kaiju_jax.gates import promotion
  from kaiju_jax.reporting import report
  from kaiju_jax.runs import load
  from kaiju_jax.storage import folders

  folders.refuse_existing(_OUT.value)
  policy = promotion.load_policy(_POLICY.value)
  loaded = _ARM.read().load(_CANDIDATE.value)
  weights = load.digest(loaded)
  del loaded  # The gates load it themselves.
  decision = promotion.run(
    _CANDIDATE.value, policy, weights, promotion.find_day()
  )
  text = '\n'.join(promotion.tables(decision))
  report.Report().say(text).decide(decision).conclude(_OUT.value)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
