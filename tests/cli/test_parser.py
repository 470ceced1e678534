import subprocess
import sys
from importlib import import_module

import pytest

import outpace
from outpace.cli import catalogue, main, parser, race, simulate
from outpace.cli.parser import command_line
from outpace.job import machine
from outpace.launching import child
from outpace.launching.supervisor import Job
from outpace.race.run import SYSTEMS
from outpace.simulation.scenario import DATA

(_added,) = command_line()._subparsers._group_actions
COMMANDS = _added.choices  #: by name: what parses its options


def complaint(capsys, *argv):
    """The exit code and the lines on standard error of a command line that is wrong."""
    try:
        code = main(argv)
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err.splitlines()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["race", "--ranks", "0"], "argument --ranks: '0' must be a whole number, at least 1"),
        (["race", "--ranks", "two"], "argument --ranks: 'two' must be a whole number, at least 1"),
        (["race", "--ranks", "4000"], "can be split over 1 to 2048 ranks, not 4000"),
        (["race", "--rounds", "-1"], "argument --rounds: '-1' must be a whole number, at least 1"),
        (["race", "--compute-ms", "nan"], "argument --compute-ms: 'nan' must be a number of milliseconds"),
        (["race", "--imbalance", "rando"], "no imbalance is called 'rando'; did you mean random"),
        (["race", "--imbalance", "random:k=9"], "k=9 ranks cannot be delayed in a world of 8"),
        (["race", "--strategies", "ddp,eager-sole"], "no system is called 'eager-sole'; did you mean eager-solo"),
        (["race", "--strategies", "eager:quorum=9"], "quorum=9 is larger than the world of 8 ranks"),
        (["race", "--strategies", ","], "argument --strategies/--strategy: at least one name is needed"),
        (["race", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["race", "--sed", "1"], "unrecognized arguments: --sed"),
        (["race", "--strategies", "dpd"], "no system is called 'dpd'; did you mean ddp"),
        (["race", "--workload", "sequence"], "no workload is called 'sequence'; did you mean sequences"),
        (["race", "--epochs", "2", "--seconds", "3"], "a race has one length: give one of epochs and seconds, not 2"),
        (["race", "--epochs", "0"], "epochs=0.0 must be more than 0"),
        (["race", "--seconds", "x"], "argument --seconds: 'x' must be a number of seconds"),
        (["race", "--target", "x"], "argument --target: invalid float value: 'x'"),
        (["race", "train.py"], "'train.py' is an argument for a script; name one with --script"),
        (["race", "--script", "nowhere.py"], "there is no script nowhere.py"),
        (["race", "--script", __file__, "--imbalance", "random"], "--imbalance slows down the built-in workloads only"),
        (["race", "--script", __file__, "--rounds", "3"], "--rounds applies to the built-in workloads only"),
        (["race", "--script", __file__, "--strategies", "ddp"], "ddp cannot run your script"),
        (["race", "--script", __file__, "--workload", "code"], "give --workload or --script, not both"),
        (["race", "--run-dir", "."], "is not empty, and a race overwrites nothing"),
        (["race", "--strategies", "torch-post-local-sgd:period=1"], "period=1 must be a whole number from 2"),
        (["report", "."], "is not the run directory of a race: race.json cannot be read"),
        (["report", "/nowhere/at/all"], "is not the run directory of a race"),
        (["run", "train.py"], "the following arguments are required: -n/--ranks/--nproc-per-node"),
        (["run", "-n", "2"], "the following arguments are required: script.py"),
        (["run", "-n", "0", __file__], "'0' must be a whole number, at least 1"),
        (["run", "-n", "999999", __file__], "999,999 ranks need about"),
        (["run", "-n", "2", "nowhere.py"], "there is no script nowhere.py: nothing was started"),
        (["run", "-n", "2", "-m", "no_such_module"], "there is no module no_such_module: nothing was started"),
        (["run", "-n", "2", "--no-python", "no-such-program"], "there is no program no-such-program"),
        (["run", "-n", "2", "-m", "--no-python", "x"], "not allowed with argument -m/--module"),
        (["run", "-n", "2", "--max-restarts", "-1", __file__], "'-1' must be a whole number, at least 0"),
        (["run", "-n", "2", "--min-ranks", "3", __file__], "--min-ranks 3 is more than the 2 ranks of -n"),
        (["run", "-n", "2", "--min-ranks", "0", __file__], "'0' must be a whole number, at least 1"),
        (["run", "-n", "2", "--stop-within", "-1", __file__], "'-1' must be a number of seconds, 0 or more"),
        (["rac"], "no command is called 'rac'; did you mean race"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(capsys, argv, message):
    code, lines = complaint(capsys, *argv)
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("outpace")
    assert message in lines[0]


def test_more_ranks_than_memory_allows_are_not_begun(capsys, monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 10**9)
    code, (line,) = complaint(capsys, "race", "--ranks", "2000")
    assert code == 2
    assert "2,000 ranks need about 300.0 GB of memory, and 1.0 GB are free here" in line
    assert "Use --ranks 6 or less" in line


def test_a_race_without_its_data_is_not_begun(capsys, tmp_path):
    code, (line,) = complaint(capsys, "race", "--workload", f"vision:data={tmp_path}")
    assert code == 1
    assert str(tmp_path) in line


@pytest.mark.parametrize(
    ("argv", "word"), [(["--help"], "race"), (["race", "--help"], "emulated"), (["run", "--help"], "exit codes")]
)
def test_help_helps(capsys, argv, word):
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 0
    assert word in capsys.readouterr().out


def test_python_m_outpace_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "outpace", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"outpace {outpace.__version__}\n"


def test_help_versions_and_mistakes_of_all_commands_do_not_import_torch():
    asked = [[], ["--help"], ["--version"], *([name, "--help"] for name in COMMANDS), ["race", "--ranks", "0"]]
    each = "\n".join(f"with suppress(SystemExit): outpace.cli.main({arguments})" for arguments in asked)
    code = f"import sys\nfrom contextlib import suppress\nimport outpace.cli\n{each}\nprint(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.count("usage: outpace") == 2 + len(COMMANDS)
    assert not {"torch", "numpy", "rich"} & set(shown.stdout.splitlines()[-1].split())


def test_ctrl_c_while_a_command_loads_ends_it_without_a_traceback(monkeypatch, capsys):
    class Interrupted:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    monkeypatch.setattr("outpace.cli.import_module", lambda name: type("Loading", (), {"field": Interrupted()}))
    assert main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "")


def test_every_option_is_explained_in_a_sentence():
    for name, options in COMMANDS.items():
        for action in options._actions:
            if action.dest != "help":
                assert action.help[0].isupper(), (name, action.help)
                assert action.help.endswith("."), (name, action.help)


def test_every_command_has_a_function_that_runs_it():
    for name, options in COMMANDS.items():
        file, _, function = options.get_default("runs").partition(".")
        assert callable(getattr(import_module(f"outpace.cli.{file}"), function)), name


def test_what_is_said_of_defaults_is_what_other_layers_have():
    typed = command_line().parse_args
    assert race._settings(typed(["race"])) == race.USUAL
    assert simulate._scenario(typed(["simulate"])) == simulate.USUAL
    assert simulate.ON_HOSTS == parser.ON_HOSTS
    assert parser.RACED.split(",") == list(SYSTEMS)
    assert parser.SIMULATED.split(",") == list(simulate.SYSTEMS)
    assert parser.BASELINE == simulate.BASELINE
    assert parser.DATA == DATA
    assert set(parser.NAMES) == set(catalogue.CATALOGUE)
    run, usual = typed(["run", "-n", "1", "train.py"]), Job(1, ())
    assert (run.max_restarts, run.stop_within) == (usual.max_restarts, usual.stop_within_s)
    said = (f"after {child.FIRST_S} s", f"up to {child.LONGEST_S:g} s", f"a life of {child.HEALTHY_S:g} s")
    assert all(words in " ".join(parser.RESTARTING.split()) for words in said)
    assert f"{child.WINDOW_S / 60:g} minutes" in COMMANDS["run"].format_help()
