"""The installed command, as a shell runs it."""

import json
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests.cli.calls import SMALL, data

SCRIPT = shutil.which("dpjax", path=sysconfig.get_path("scripts"))


def test_module_prints_what_main_prints(capsys):
    argv = [sys.executable, "-W", "error", "-m", "dpjax", "epsilon", *SMALL, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == data(capsys, ["epsilon", *SMALL])


@pytest.mark.skipif(SCRIPT is None, reason="dpjax is not installed, only importable")
def test_script_refuses_in_one_line_without_a_traceback():
    argv = [str(SCRIPT), "epsilon", *SMALL, "--delta", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dpjax: error: privacy.delta = 2.0: expected a number in (0, 1)\n"


def test_a_reader_that_has_seen_enough_is_no_error():
    # `true` reads nothing, and has ended long before there is something to print.
    argv = f"{sys.executable} -m dpjax data list | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", argv], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_misspelt_name_is_told_the_nearest():
    for program, nearest in (
        ("dpjax.privatise", "'privatize'"),
        ("dpjax.methods.dpsgd", "'dp_sgd'"),
    ):
        argv = [sys.executable, "-c", f"import dpjax; {program}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stderr.splitlines()[-1].endswith(f"Did you mean: {nearest}?")
