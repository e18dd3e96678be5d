"""Runs command lines in this process while an audit hook watches what they do; prints JSON.

``python -m tests.endurance.watched CASES`` reads a JSON file: a list of cases, each with an `argv`,
the folder `inside` which it may write, and a `secret` folder that it may not even read. For each
case it prints a line: the exit code, what was said, and what was done that must not be done.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

MARK = "dpjax_was_here"  # hostile code contains this word, and hostile modules are named so

_STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen")
_NEVER = (*_STARTS, "pickle.find_class", "socket.connect", "socket.bind", "ctypes.dlopen")
_FILES = ("rename", "remove", "rmdir", "mkdir", "link", "symlink", "chmod", "truncate", "chown")
_CHANGES = (*(f"os.{name}" for name in _FILES), "shutil.rmtree", "shutil.move", "shutil.copyfile")


class Watch:
    """The audit hook: notes what a command does that it must not do."""

    def __init__(self) -> None:
        self.active = False
        self.allowed: list[Path] = []
        self.secret = ""
        self.seen: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Is told of every event."""
        if not self.active:
            return
        self.active = False  # what follows opens nothing, but resolves paths
        try:
            self._look(event, args)
        finally:
            self.active = True

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(_NEVER):
            self.seen.append(f"{event} {args!r:.200}")
        elif event == "open":
            path, _, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if isinstance(path, str | bytes | os.PathLike):
                self._look_at(event, os.fsdecode(path), bool(writes))
        elif event.startswith(_CHANGES):
            for path in args[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    self._look_at(event, os.fsdecode(path), True)
        elif event in ("compile", "exec", "import") and MARK in f"{args!r}":
            self.seen.append(f"{event} {args!r:.200}")

    def _look_at(self, event: str, path: str, writes: bool) -> None:
        real = Path(os.path.realpath(path))
        if writes and not any(real.is_relative_to(folder) for folder in self.allowed):
            self.seen.append(f"{event} for writing {real}")
        if self.secret and real.is_relative_to(self.secret):
            self.seen.append(f"{event} of {real}")


def main() -> None:
    """Runs the cases of a file."""
    import matplotlib.font_manager  # noqa: F401, PLC0415  it asks the system for its fonts

    from dpjax.cli import main as dpjax  # noqa: PLC0415

    cases = json.loads(Path(sys.argv[1]).read_text())
    watch = Watch()
    sys.addaudithook(watch)
    # What is imported late, and what JAX starts, is not the command's doing: once before.
    _run(dpjax, {"argv": ["epsilon", "--help"]}, watch)
    for case in cases:
        os.chdir(case["inside"])
        null = Path(os.devnull)
        watch.allowed = [Path(case["inside"]), null, Path(os.environ["MPLCONFIGDIR"])]
        watch.secret, watch.seen = case.get("secret", ""), []
        print(json.dumps(_run(dpjax, case, watch)), flush=True)


def _run(dpjax: Any, case: dict[str, Any], watch: Watch) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    failure = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        watch.active = True
        try:
            if "python" in case:  # the rejecting arm: what a hostile config would like to run
                exec(compile(case["python"], "hostile", "exec"), {})
                code: Any = 0
            else:
                code = dpjax(case["argv"])
        except SystemExit as left:
            code = left.code
        except BaseException as error:
            code, failure = -1, repr(error)
        finally:
            watch.active = False
    return {
        "code": code,
        "said": err.getvalue(),
        "out": out.getvalue(),
        "failure": failure,
        "seen": watch.seen,
    }


if __name__ == "__main__":
    main()
