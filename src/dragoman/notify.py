"""Notifications about a run, by a command or a webhook; failures never hurt the run."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dragoman.config import NotifyEvent, NotifySettings

SECONDS_FOR_COMMAND = 60.0
SECONDS_FOR_WEBHOOK = 15.0
# Whoever knows the address of a chat service's webhook can write there; commands contain them too.
SECRETS = ("notify.command", "notify.webhook")
HIDDEN = "(set)"


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
        except Exception as error:  # Of whatever answers there; a run must not end by it.
            lines = str(getattr(error, "reason", "") or error).strip().splitlines()
            reason = lines[0] if lines else type(error).__name__
            warn(f"notify ({notice.event}) failed: {reason}; nothing else is affected")


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names, for others to read: of a secret only whether it is set."""
    return {
        name: HIDDEN if name in SECRETS and value else value for name, value in settings.items()
    }


def command_without_secrets(words: Sequence[str]) -> list[str]:
    """A command for others to read, whose overrides do not give secrets away."""
    names = [word.partition("=")[0] for word in words]
    return [
        f"{name}={HIDDEN}" if name.strip() in SECRETS else word
        for name, word in zip(names, words, strict=True)
    ]


def _run_command(command: str, notice: Notice) -> None:
    """By the shell, with the notice as JSON on its standard input and as variables."""
    variables = {f"DRAGOMAN_{name.upper()}": value for name, value in asdict(notice).items()}
    try:
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
    except subprocess.TimeoutExpired:  # Which spells the command out.
        raise OSError(f"the command took more than {SECONDS_FOR_COMMAND:g} s") from None
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
