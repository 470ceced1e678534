import subprocess
import sys

import pytest

import outpace
from outpace.cli import main


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
        (["demo", "--ranks", "0"], "argument --ranks: '0' must be a whole number, at least 1"),
        (["demo", "--ranks", "two"], "argument --ranks: 'two' must be a whole number, at least 1"),
        (["demo", "--ranks", "4000"], "can be split over 1 to 2048 ranks, not 4000"),
        (["demo", "--steps", "-1"], "argument --steps: '-1' must be a whole number, at least 1"),
        (["demo", "--compute-ms", "nan"], "argument --compute-ms: 'nan' must be a number of milliseconds"),
        (["demo", "--imbalance", "rando"], "no imbalance is called 'rando'; did you mean random"),
        (["demo", "--imbalance", "random:k=9"], "k=9 ranks cannot be delayed in a world of 8"),
        (["demo", "--strategies", "ddp,eager-sole"], "no strategy is called 'eager-sole'; did you mean eager-solo"),
        (["demo", "--strategies", "eager:quorum=9"], "quorum=9 is larger than the world of 8 ranks"),
        (["demo", "--strategies", ","], "argument --strategies/--strategy: at least one name is needed"),
        (["demo", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["demo", "--sed", "1"], "unrecognized arguments: --sed 1"),
        (["dem"], "invalid choice: 'dem'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(capsys, argv, message):
    code, lines = complaint(capsys, *argv)
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("outpace")
    assert message in lines[0]


@pytest.mark.parametrize(("argv", "word"), [(["--help"], "demo"), (["demo", "--help"], "emulated")])
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
