"""Promote a model: run the gates of a policy, and write one decision.

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
import dataclasses

from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.runs import play


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # A workdir, an export or a Hugging Face folder.
  candidate: str
  # A JSON file: the gates.
  policy: str
  arm: play.Arm
  # A new folder.
  out: str


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.gates import promotion
  from kaiju_jax.runs import load
  from kaiju_jax.storage import folders

  folders.refuse_existing(settings.out)
  policy = promotion.load_policy(settings.policy)
  loaded = settings.arm.load(settings.candidate)
  weights = load.digest(loaded)
  del loaded  # The gates load it themselves.
  decision = promotion.run(
    settings.candidate, policy, weights, promotion.find_day()
  )
  promotion.page(decision).conclude(settings.out)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
