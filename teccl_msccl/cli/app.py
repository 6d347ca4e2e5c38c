"""The `teccl-msccl` program: commands, and how errors leave it."""

from __future__ import annotations

import os
import sys

import typer
from typer.exceptions import TyperException

from ..errors import InputError, Refused
from . import output

#: A shell's exit code of what Ctrl-C ended.
INTERRUPTED = 130

app = typer.Typer(
    name="teccl-msccl",
    help="Synthesize, prove and execute collective schedules for the links that your GPUs really have. "
    "Every command takes --json: one JSON object on stdout.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _register() -> None:
    """Each command's file adds itself to `app`."""
    from . import commands  # noqa: F401
    from .examples import add_examples

    add_examples(app)


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit: 0 good, 1 the answer is no, 2 bad input; one line on stderr, no traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    output.as_json = "--json" in arguments
    arguments = [argument for argument in arguments if argument != "--json"] or ["--help"]
    _register()
    try:
        code = app(arguments, prog_name="teccl-msccl", standalone_mode=False)
        if code == INTERRUPTED:  # which typer makes of Ctrl-C, and says nothing
            code = _fail("interrupted", INTERRUPTED)
    except typer.Exit as stop:
        code = stop.exit_code
    except TyperException as error:
        code = _fail(_words(error), 2)
    except InputError as error:
        code = _fail(str(error), 2)
    except Refused as error:
        code = _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _words(error: TyperException) -> str:
    """The parser's complaint; of a wrong option, with the nearest right one."""
    known = getattr(error, "possibilities", None)
    wrong = getattr(error, "option_name", None)
    if not (known and wrong):
        return error.format_message()
    from difflib import get_close_matches

    near = get_close_matches(wrong, known, 1, 0) or list(known)
    return f"no such option {wrong}; did you mean {near[0]}?"


def _fail(text: str, code: int) -> int:
    line = " ".join(text.split())
    output.stderr.print(f"error: {line}", markup=False, soft_wrap=True)
    output.answer({"error": line, "exit_code": code}, lambda: None)
    return code
