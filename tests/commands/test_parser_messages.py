"""jsonargparse's messages in one line, as its own version says them here."""

import pytest

from fedvlp.commands.lightning_cli import ParsingCLI

START = ["--model=TRIP", "--data=StyledShapes"]


@pytest.fixture(scope="module")
def parser():
    options = {"exit_on_error": False}
    return ParsingCLI(run=False, args=START, save_config_callback=None, parser_kwargs=options).parser


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("--trainer.rounds=two", "trainer.rounds: expected a whole number, got two"),
        ("--trainer.rounds=null", "trainer.rounds: expected a whole number, got None"),
        ("--trainer.clients.cohort_size=1.5", "trainer.clients.cohort_size: expected a whole number, got 1.5"),
        ("--trainer.precision=8", "trainer.precision: expected one of 32-true, bf16-mixed, 16-mixed, auto, got 8"),
        ("--trainer.runtime.compile=perhaps", "trainer.runtime.compile: expected true or false, got perhaps"),
        ("--trainer.local.schedule=Nothing", "trainer.local.schedule: there is no class Nothing"),
        (
            "--trainer.local.schedule=ExponentialDecay",
            "trainer.local.schedule: the following arguments are required: gamma",
        ),
        ("--data.held_out={}", "data.held_out: expected text or a list, got {}"),
        ("--model.clip=[]", "model.clip: expected a CLIPSpec or a CLIP or text, got []"),
        ("--model.clip.seed=x", "model.clip.seed: expected a whole number, got x"),
        ("--model.routing=by_hand", "model.routing: expected one of token, image, uniform, random, random_tokens, "),
        ("--model.kl_weight=[[[[", "model.kl_weight: expected a number, got [[[["),
        ("--data.heldout=x", "data: Option 'heldout' is not accepted. Did you mean 'held_out'?"),
        ("--model=Trip", "model: there is no class Trip. Did you mean 'TRIP'?"),
        ("--trainer=1", 'trainer: Unable to load config "1"'),
        (
            f"--trainer.clients.stragglers=1{'0' * 400}",
            "--trainer.clients.stragglers: int too large to convert to float",
        ),
        ("--trainer=\0", "--trainer: embedded null byte"),
    ],
)
def test_one_line(parser, argument, line):
    with pytest.raises(Exception) as raised:  # noqa: PT011 (argparse's own type)
        parser.parse_args([*START, argument])
    assert parser.explain(str(raised.value)).startswith(line)


def test_long_values_are_cut(parser):
    with pytest.raises(Exception) as raised:  # noqa: PT011
        parser.parse_args([*START, f"--model.kl_weight={'x' * 10_000}"])
    assert len(parser.explain(str(raised.value))) < 200


def test_help_shows_ranges_once(parser, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args([*START, "--model.help=TRIP"])
    words = " ".join(capsys.readouterr().out.split())
    assert "(type: int at least 1, default: 32)" in words
    assert "(type: int in [1, 80], default: 60)" in words
    assert "(type: Optional[float] above 0, default: 2.0)" in words
    assert words.count("default: 32") == 1
