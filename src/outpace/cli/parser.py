"""What can be typed: every command with its options and their help. Owns how options are read and explained.

Imports neither torch nor anything that needs it, so that help, versions and mistakes are answered at once. Defaults and
names that other layers own are repeated here in words; tests/cli/test_parser.py holds the two together.
"""

from __future__ import annotations

import argparse
import math
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from outpace.errors import UnknownName
from outpace.spec import look_up
from outpace.version import __version__

DATA = ("split", "shared", "balanced", "both")
RACED = "ddp,allreduce,auto,eager-majority,wagma,nonblocking"
SIMULATED = "allreduce,eager-majority,eager-solo,auto"
BASELINE = "allreduce"
ON_HOSTS = "cluster"  #: the network of `simulate --hosts`
NAMES = {"strategies": "strategy", "imbalances": "imbalance", "networks": "network"} | {
    "workloads": "workload",
    "codecs": "codec",
}  #: by command: what one of them is called

RUN = """
Runs a training script on this machine as torchrun does, once for each rank. A rank that dies is restarted, alone:
the others go on, and it takes over their weights, optimizer state and round, and contributes from there.
"""
RESTARTING = """
A rank dies if it is killed, raises or exits with a code other than 0. It is restarted after 0.1 s, then 0.2 s, up to
10 s; a life of 30 s resets that. The run ends if every rank raises before training has begun, or if no rank is left to
take the weights from. To continue where the others are, loop over `range(optimizer.stats.round, steps)`.
"""
ENDING = """
SIGINT (Ctrl-C), SIGTERM and SIGHUP are passed on to the ranks; a second one kills them at once. The traceback of the
rank that ended the run is repeated last.
"""
CODES = """exit codes:
  0    every rank finished
  1    a rank failed for good, or too few were left (BelowQuorum)
  2    the command line is wrong; nothing was started
  129, 130, 143    ended by SIGHUP, SIGINT (Ctrl-C) or SIGTERM"""
RACE = """
Trains a workload under torch's own systems and under outpace's strategies, one after the other, in real processes on
this machine. Shows who is late while it runs, and at the end how good each model is, how long its training took and how
long its ranks waited. All of it is kept in a run directory, with a report to open in a browser.
"""
EMULATED = """
Unless --compute-ms is 0, computing is emulated, because the ranks cannot all compute at once on a few cores: a step
makes its real data and forward pass, sleeps, and runs its real backward pass in time.
"""
SCRIPT = """
A script of your own (--script train.py -- its arguments) runs once for each strategy, whichever its
DistributedOptimizer names. If it calls step(loss=...), the loss is drawn.
"""
REPORT = "Makes the report of a race again from its run directory: one HTML file that needs nothing else."
SIMULATE = """
Runs strategies through a cluster that you describe, in simulated time, and shows which would be faster and who would
wait. Nothing is sent, and without --workload nothing is computed: a step takes what --compute-ms and --imbalance say, a
round what --network makes of --payload-mb (LogGP: latency, overhead and gap per byte, between hosts and inside of
them). The strategies are the very code that trains for real, and so is every decision on who is in which round. On a
cluster (--hosts) what ranks say goes through a store, as with torchrun on several hosts: then its load is shown, too.
"""
TRACE = """
Shows how long each rank of a recorded run computed and waited, and which rank was the slowest. A run is recorded by
DistributedOptimizer(..., log_dir="runs/x"), or by outpace.record(optimizer, "runs/x") in a loop with torch's DDP.
"""
WATCH = """
Shows a job while it runs: how long each rank computes and waits, who is late now and by how much, the loss, and how
stale the contributions are. The job must record: DistributedOptimizer(..., log_dir="runs/x"), outpace.record(optimizer,
"runs/x"), or outpace race. It does not notice that it is watched. Ends when all ranks have finished, or with Ctrl-C.
"""
ADVISE = """
Reads what a run recorded, and says how much of their time its ranks waited for each other. Replays their computing in
simulated time under each strategy, and with data that are shared or cut into batches of equal cost. Ends with one
recommendation and its reasons; it may be to change nothing. The ranks' numbers of steps show whether they shared their
data, unless you say --data; step(samples=tokens) shows whether lengths make steps slow.
A run is recorded by outpace.record(optimizer, "runs/x") in a loop with torch's DDP, or by DistributedOptimizer(...,
log_dir="runs/x").
"""
DOCTOR = """
Says what this machine offers for training: processors, memory, how ranks can share it, devices, the network. With
--parameters, also whether a model of that size fits. The exit code is 1 if training could not start here; beside each
obstacle stands what to change.
"""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose error messages are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A command that is not there is answered as any other name is."""
        if isinstance(action, argparse._SubParsersAction):
            try:
                look_up(value, action.choices, "command")
            except UnknownName as error:
                self.error(str(error))
        super()._check_value(action, value)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help whose column leaves room for the names of commands, whose indentation argparse forgets."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            longest = max(map(len, action.choices))
            self._action_max_length = max(self._action_max_length, longest + 2 * self._indent_increment)


class Commands:
    """The commands, as they are added: each with what runs it, which is imported when it is asked for."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)

    def add(self, name: str, runs: str, about: str, description: str, *epilog: str, **options: Any) -> Any:
        """A parser for the options of a command. runs: the file in this directory and its function."""
        parser = self._parsers.add_parser(
            name,
            help=about,
            description=paragraph(description),
            epilog="\n\n".join(epilog),
            formatter_class=HelpFormatter,
            add_help=False,
            **options,
        )
        _help(parser)
        parser.set_defaults(runs=runs)
        return parser


def command_line() -> OneLineParser:
    parser = OneLineParser(
        prog="outpace",
        description="PyTorch data-parallel training that does not wait for the slowest rank.",
        epilog="`outpace COMMAND --help` says more about a command.",
        formatter_class=HelpFormatter,
        add_help=False,
    )
    _help(parser)
    parser.add_argument("--version", action="version", version=f"outpace {__version__}", help="Shows the version.")
    commands = Commands(parser)
    for add in (_run, _race, _report, _simulate, _trace, _watch, _advise, _doctor, *map(_names, NAMES)):
        add(commands)
    return parser


def _run(commands: Commands) -> None:
    about = "run a training script; a rank that dies is restarted and rejoins"
    usage = "outpace run -n N [options] script.py [arguments of the script]"
    parser = commands.add("run", "run.run", about, RUN, paragraph(RESTARTING), paragraph(ENDING), CODES, usage=usage)
    option = parser.add_argument
    about = "Starts N processes."
    option("-n", "--ranks", "--nproc-per-node", type=at_least_one, required=True, metavar="N", help=about)
    about = "Restarts a rank up to K times within 10 minutes; 0 ends the run (default: %(default)d)."
    option("--max-restarts", type=whole_number, default=10, metavar="K", help=about)
    about = "Ends the run with BelowQuorum when fewer ranks live or have finished"
    option("--min-ranks", type=at_least_one, metavar="M", help=f"{about} (default: what the script says, else 1).")
    about = "Kills ranks that have not ended S seconds after they were asked to (default: %(default)g)."
    option("--stop-within", type=quantity("seconds"), default=10.0, metavar="S", help=about)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("-m", "--module", action="store_true", help="Takes the script for the name of a module.")
    kind.add_argument("--no-python", action="store_true", help="Takes the script for a program of its own, not Python.")
    option("script", metavar="script.py", help="The script that each rank runs.")
    option("arguments", nargs=argparse.REMAINDER, metavar="...", help="Arguments for the script.")


def _race(commands: Commands) -> None:
    about = "train under several strategies on this machine, and see who wins"
    parser = commands.add("race", "race.run", about, RACE, _listed("workloads"), paragraph(EMULATED), paragraph(SCRIPT))
    option = parser.add_argument
    option("--workload", default="hyperplane", metavar="NAME", help="Trains this workload (default: %(default)s).")
    option("--script", metavar="FILE", help="Trains with a script of your own instead.")
    option("arguments", nargs="*", metavar="ARGUMENT", help="An argument for the script, after --.")
    _settings(
        parser,
        ranks="Starts N processes",
        compute="Emulates a mean step of MS milliseconds; 0 computes for real",
        imbalance="none",
        strategies=f"Compares these, between commas; ddp and torch-post-local-sgd are torch's own (default: {RACED}).",
        microbatches=4,
        seed="data, model and imbalance",
    )
    about = "Trains for N epochs (default: as suits the workload)."
    option("--epochs", type=quantity("epochs"), metavar="N", help=about)
    option("--rounds", type=at_least_one, metavar="N", help="Trains for N mini-batches of each rank instead.")
    option("--seconds", type=quantity("seconds"), metavar="S", help="Trains each system for S seconds instead.")
    _data(parser)
    about = "Measures the time to this metric (default: 98%% of what DDP learns)."
    option("--target", type=float, metavar="M", help=about)
    about = "Runs each system N times, with other seeds (default: %(default)d)."
    option("--repeat", type=at_least_one, default=1, metavar="N", help=about)
    about = "Finds each system's own learning rate first, in simulated time, on another seed."
    option("--tune", action="store_true", help=about)
    option("--run-dir", metavar="DIR", help="Keeps everything in this directory (default: runs/race-DATE-TIME).")


def _report(commands: Commands) -> None:
    parser = commands.add("report", "race.write_report", "make the report of a race again", REPORT)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="The directory of the race, as `outpace race` printed it.")


def _simulate(commands: Commands) -> None:
    about = "which strategy would be faster on a cluster you describe"
    parser = commands.add("simulate", "simulate.run", about, SIMULATE, _listed("networks"))
    size = _settings(
        parser,
        ranks="Simulates N ranks",
        compute="Lets an undisturbed step compute for MS milliseconds",
        imbalance="random:k=1,delay_ms=200",
        strategies=f"Compares these, between commas; {BASELINE} always runs, as the baseline (default: {SIMULATED}).",
        microbatches=8,
        seed="imbalance and workload",
    )
    about = f"Simulates N hosts instead, each with the network's ranks_per_host; the network is {ON_HOSTS} unless you "
    size.add_argument("--hosts", type=at_least_one, metavar="N", help=f"{about}name another.")
    option = parser.add_argument
    about = "Lets each rank make N steps, on average with --data shared (default: %(default)s)."
    option("--steps", type=at_least_one, default=200, metavar="N", help=about)
    _data(parser)
    about = "Sends gradients of MB megabytes (default: %(default)g)."
    option("--payload-mb", type=quantity("megabytes"), default=25.0, metavar="MB", help=about)
    option("--network", metavar="NAME", help=f"Links the ranks (default: ethernet, or {ON_HOSTS} with --hosts).")
    about = "Lets the optimizer itself take MS milliseconds (default: %(default)g)."
    option("--apply-ms", type=quantity("milliseconds"), default=0.0, metavar="MS", help=about)
    about = "Also trains this workload in simulated time, and shows its loss; `outpace workloads` lists them."
    option("--workload", metavar="NAME", help=about)


def _trace(commands: Commands) -> None:
    option = commands.add("trace", "trace.run", "what a recorded run spent its time on", TRACE).add_argument
    option("path", metavar="RUN_DIR", help="The directory of the recording, or one rank's file.")
    option("-o", "--perfetto", metavar="FILE", help="Also writes a timeline for https://ui.perfetto.dev to this file.")
    option("--json", action="store_true", help="Prints one JSON document instead of a table.")


def _watch(commands: Commands) -> None:
    option = commands.add("watch", "watch.run", "a running job: who is late, and who waits", WATCH).add_argument
    option("path", metavar="RUN_DIR", help="The directory that the job records to, or that of a race.")
    about = "Prints a line every S seconds where there is no terminal (default: %(default)g)."
    option("--every", type=quantity("seconds"), default=10.0, metavar="S", help=about)
    option("--once", action="store_true", help="Prints one view and exits.")
    option("--json", action="store_true", help="Prints one JSON document and exits.")


def _advise(commands: Commands) -> None:
    parser = commands.add("advise", "advise.run", "what a recorded run loses to waiting, and what would help", ADVISE)
    parser.add_argument("path", metavar="RUN_DIR", help="The directory of the recording, or one rank's file.")
    _data(parser, None)
    parser.add_argument("--json", action="store_true", help="Prints one JSON document instead of words.")
    _quiet(parser)


def _doctor(commands: Commands) -> None:
    about = "what this machine offers for training, and what to change"
    option = commands.add("doctor", "doctor.run", about, DOCTOR).add_argument
    about = "Checks whether a model of N parameters fits, such as 350M or 1.5B."
    option("--parameters", type=number_of_parameters, metavar="N", help=about)
    about = "Plans for N ranks on this machine (default: one per processor)."
    option("--ranks", type=at_least_one, metavar="N", help=about)
    about = "Checks what this strategy needs (default: %(default)s)."
    option("--strategy", default="eager-majority", metavar="NAME", help=about)
    option("--json", action="store_true", help="Prints one JSON document instead of a table.")


def _names(command: str) -> Callable[[Commands], None]:
    def add(commands: Commands) -> None:
        one = NAMES[command]
        about = f"every {one}, or one with its options and their defaults"
        option = commands.add(command, "catalogue.run", about, f"Shows {about}.").add_argument
        option("name", nargs="?", metavar="NAME", help=f"Shows this {one}; without it, all are listed.")
        option("--json", action="store_true", help="Prints one JSON document instead of text.")

    return add


def _listed(others: str) -> str:
    """Where names are explained that options take."""
    return paragraph(f"""`outpace strategies`, `outpace imbalances` and `outpace {others}` list the names that options
    take. Names may have options of their own: --strategies eager:quorum=3,late=drop --imbalance random:k=1,delay_ms=200
    """)


def _settings(
    parser: argparse.ArgumentParser,
    ranks: str,
    compute: str,
    imbalance: str,
    strategies: str,
    microbatches: int,
    seed: str,
) -> Any:
    """The options that comparisons share. Returns the group of --ranks, for an option that says the same otherwise."""
    option, size = parser.add_argument, parser.add_mutually_exclusive_group()
    default = "8"  # as text: else argparse took the same number, typed, for the default
    about = f"{ranks} (default: %(default)s)."
    size.add_argument("--ranks", type=at_least_one, default=default, metavar="N", help=about)
    about = f"{compute} (default: %(default)g)."
    option("--compute-ms", type=quantity("milliseconds"), default=100.0, metavar="MS", help=about)
    about = "Slows ranks down as this model says (default: %(default)s)."
    option("--imbalance", default=imbalance, metavar="MODEL", help=about)
    option("--strategies", "--strategy", type=name_list, action="extend", metavar="NAMES", help=strategies)
    about = "Divides a step into N parts, for strategies that may end one early (default: %(default)d)."
    option("--microbatches", type=at_least_one, default=microbatches, metavar="N", help=about)
    about = f"Draws {seed} from this seed (default: %(default)s)."
    option("--seed", type=int, default=0, metavar="N", help=about)
    option("--json", action="store_true", help="Prints one JSON document instead of a table.")
    _quiet(parser)
    return size


def _help(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-h", "--help", action="help", help="Shows this help.")


def _quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="Prints the result only, and no progress.")


def _data(parser: argparse.ArgumentParser, usual: str | None = "split") -> None:
    about = f"""With split, all ranks make as many steps, as with DistributedSampler, and the slowest ends the run. With
    shared, whoever is free takes the next step from one pool. With balanced, data are split into batches of equal cost.
    With both, such batches come from one pool (default: {usual or "what the recording shows"})."""
    parser.add_argument("--data", choices=DATA, default=usual, help=" ".join(about.split()))


def whole_number(text: str, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least {least}")
    return number


def at_least_one(text: str) -> int:
    return whole_number(text, least=1)


def quantity(unit: str) -> Callable[[str], float]:
    """What parses a number of this unit, 0 or more."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number of {unit}, 0 or more")
        return number

    return parse


def number_of_parameters(text: str) -> int:
    """
    >>> number_of_parameters("1.5B")
    1500000000
    """
    factor = {"K": 10**3, "M": 10**6, "B": 10**9}.get(text[-1:].upper(), 1)
    try:
        number = round(float(text if factor == 1 else text[:-1]) * factor)
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of parameters, as 25000000, 350M or 1.5B")
    return number


def name_list(text: str) -> list[str]:
    """Names between commas. An option=value belongs to the name before it, so that names may have several.

    >>> name_list("ddp,eager:quorum=3,late=drop,eager-solo")
    ['ddp', 'eager:quorum=3,late=drop', 'eager-solo']
    """
    names: list[str] = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        if names and "=" in piece and ":" not in piece:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    if not names:
        raise argparse.ArgumentTypeError("at least one name is needed")
    return names


def paragraph(text: str, first: str = "", others: str = "") -> str:
    """Wrapped text for raw help, with the prefixes of the first line and of the others."""
    columns = shutil.get_terminal_size().columns - 2  # as argparse has it
    return textwrap.fill(" ".join(text.split()), columns, initial_indent=first, subsequent_indent=others)


def listing(title: str, rows: Iterable[tuple[str, str]]) -> str:
    pairs: Sequence[tuple[str, str]] = list(rows)
    width = max(len(name) for name, _ in pairs) + 2
    return "\n".join([f"{title}:", *(paragraph(text, f"  {name:{width}}", " " * (width + 2)) for name, text in pairs)])
