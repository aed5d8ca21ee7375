"""Change what a running server serves, or take it back, without a restart.

    python -m experiments.operate --port=9100
    python -m experiments.operate --port=9100 --safety=runs/moderated
    python -m experiments.operate --port=9100 --safety_rollback
    python -m experiments.operate --port=9100 --rollout=kaiju-2 --hold=60
    python -m experiments.operate --port=9100 --rollout=b7c1f0 --replaces
    python -m experiments.operate --port=9100 --rollback=b7c1f0
    python -m experiments.operate --port=9100 --drain=kaiju-1

--port is the server's --metrics_port, on this machine (--port=9100,9101 for two
ingresses, which change one after the other), and --folder its folder, where its
operator's key lies. Without a change it prints what is served. A gate
comes with its thresholds, from one folder; requests that are open end with the
gate that they began with. A rollback serves the gate before the one that is
served; a second rollback takes that back. The other changes are of a fleet's
replicas, each named by its name or by the first digits of its build.
"""

from collections.abc import Sequence

from kaiju_jax.app import operate
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(operate.Change)


def main(argv: Sequence[str]) -> None:
  wanted = FLAGS.read(argv)
  from kaiju_jax.reporting import report

  for server in operate.apply(wanted):
    report.Report().add(*operate.describe(server.ask())).show()


if __name__ == '__main__':
  command.run(main, RuntimeError)
