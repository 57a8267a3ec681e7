"""Notifications about a run, by a command or a webhook; failures never hurt the run."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dragoman.config import NotifyEvent, NotifySettings

SECONDS_FOR_COMMAND = 60.0
SECONDS_FOR_WEBHOOK = 15.0


@dataclass(frozen=True)
class Notice:
    """What happened to a run."""

    event: NotifyEvent
    run: str
    message: str  # One line for people.


def notify(settings: NotifySettings, notice: Notice, warn: Callable[[str], None]) -> None:
    """Tell of an event, if the settings ask for it; what goes wrong is one line of warning."""
    if notice.event not in settings.on:
        return
    for tell, where in ((_run_command, settings.command), (_post, settings.webhook)):
        if not where:
            continue
        try:
            tell(where, notice)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            reason = str(getattr(error, "reason", "") or error).splitlines()[0]
            warn(f"notify ({notice.event}) failed: {reason}; nothing else is affected")


def _run_command(command: str, notice: Notice) -> None:
    """By the shell, with the notice as JSON on its standard input and as variables."""
    variables = {f"DRAGOMAN_{name.upper()}": value for name, value in asdict(notice).items()}
    done = subprocess.run(
        command,
        shell=True,
        input=json.dumps(asdict(notice)).encode(),
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=SECONDS_FOR_COMMAND,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(
            f"the command exited with code {done.returncode}" + (f": {said[-1]}" if said else "")
        )


def _post(address: str, notice: Notice) -> None:
    """As JSON; `text` is what chat services show."""
    content = json.dumps({**asdict(notice), "text": f"{notice.run}: {notice.message}"}).encode()
    request = urllib.request.Request(
        address, content, {"Content-Type": "application/json", "User-Agent": "dragoman"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS_FOR_WEBHOOK):
        pass
