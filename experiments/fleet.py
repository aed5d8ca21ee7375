"""Simulate fleets: what each routing policy does to first tokens and hits.

    python -m experiments.fleet [--policies=sticky,bounded] [--zipf=0.8,1.0,1.2]
        [--seeds=0,1,2] [--replicas=12] [--rate=58] [--sessions=250000]
        [--drill=lost] [--engine=engine.json] [--slo=2.5] [--json=PATH]
    python -m experiments.fleet --price_of_slo=0.5,1,2.5,10 [--policies=sticky]
    python -m experiments.fleet --error_budget=lost,table [--policies=sticky]
    python -m experiments.fleet --closed_forms
    python -m experiments.fleet --calibrate --model=RUN --out=engine.json
    python -m experiments.fleet --wall_clock --model=RUN --engine=engine.json

Simulates sessions with characters on a fleet of replicas that go in rounds as
the engine does, each with a prefix cache of both pools, behind a router that
calls `serving/routing/policies.pick`. Prints times to the first token, tokens
per second, hit rates and how busy the replicas are, with the range over seeds.
--price_of_slo finds the fewest replicas with which each policy bears the same
sessions at these p99s of the first token. --error_budget finds how much of the
43 minutes that a promise of 99.9 % leaves a month each drill spends. --gate
adds the seconds for which gates read a message before an engine has it.

The law of a round is an H100's ceilings, --slower times over, which no device
has confirmed, or a measured engine's: --calibrate measures rounds of a model
here and fits the law; --wall_clock serves one load on the wall clock and in the
simulator. --closed_forms holds the simulator to Erlang's C and to Che.

Needs numba (extra `fleet`). docs/fleet_simulation.md says what is left out.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(fleet_settings.FleetSettings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import fleet

  fleet.run(settings)


if __name__ == '__main__':
  command.run(main)
