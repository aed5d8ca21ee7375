"""Replay traffic through prefix caches, and refuse trees or changes that miss.

    python -m experiments.replay [--traffic=people] [--live=40,80]
        [--swipes=.15,.45] [--tiers=mature] [--requests=10000] [--zipf=1.0]
        [--seed=0] [--fractions=1/20,1/40,1/80] [--preset=13b]
        [--caches=points,lru,blocks,foresight] [--least=.5] [--json=PATH]
    python -m experiments.replay --change=build --live=4000 --swipes=.15
        --fractions=1/2 [--plan=.1,.5,1] [--hold=60] [--warm=64] [--open=stay]

Draws a trace per tier, live count and part of swipes, and serves it, without a
model, from an oracle that keeps everything, from the engine's own prefix tree,
from the same tree that evicts what was used least recently, and from pages as
entries of their own, all with a part of the oracle's bytes; beside them stands
a prefix tree that knows the trace and evicts what will be asked for last.
Prints hits, what they are of the oracle's, and which requests miss; with --json
writes them, too. The exit status is 3 if the engine's tree has less than
--least of a trace's tokens.

With --change, half-way in the trace other weights or another format of prompts
come ('build'), or prompts begin with the time, in units of --tick seconds
('clock'): nothing of before can be resumed. --plan lists the shares of the
conversations that have the change, each for --hold seconds; without it all
have it at once. --open=stay lets open conversations end on what they began
with, as `kaiju serve --ray` does; --warm prefills so many characters' prefixes
before. The exit status is 3 if a step has less than --least of the tokens, or
what has the change does afterwards, and 4 if no request came in a step.

--traffic=people is traffic as people make it (`fleet/people.py`); fixed is a
fixed number of conversations, each with somebody of its own
(`fleet/traffic.py`). Before that it reproduces source 003, whose caches keep
characters' prefixes and nothing of the turns behind them.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(fleet_settings.ReplaySettings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import replay

  replay.run(settings)


if __name__ == '__main__':
  command.run(main)
